"""Set-up: a virtual environment in .venv with shardline in it, installed by uv under the limits of constraints.txt.

    python3 .ci/set_up.py [EXTRA ...]

Called by the Makefile, with the extra `dev` for tests and checks. It asks no question, needs no root, and leaves
`.venv/.ready` (and `.venv/.ready-EXTRA`), which the Makefile compares with pyproject.toml and constraints.txt.
What the machine lacks is told in one line, with exit code 3. It has to run on the Python that a machine happens to
have, to be able to say that it is too old: so it keeps to the language of Python 3.6 and the standard library.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
OLDEST = (3, 11)
NEWEST_KNOWN = (3, 14)
EXIT_ENVIRONMENT = 3

IS_RECENT = "import sys; sys.exit(sys.version_info < {})".format(OLDEST)

#: uv does not read pip's settings; a mirror or a certificate that the user gave to pip holds for uv too.
PIP_TO_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}


class Lacking(Exception):
    """The machine lacks something; the text says what to install."""


def main(extras):
    try:
        python = find_python()
        make_venv(python)
        install(extras)
    except Lacking as error:
        print("shardline: {}".format(error), file=sys.stderr)
        return EXIT_ENVIRONMENT
    except subprocess.CalledProcessError as error:
        print("shardline: set-up failed in: {}".format(" ".join(error.cmd)), file=sys.stderr)
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        return 130
    for name in [".ready"] + [".ready-" + extra for extra in extras]:
        with open(os.path.join(VENV, name), "w"):
            pass
    return 0


def find_python():
    """The Python to build on: the one that runs this, or a newer one beside it when it is too old."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in range(NEWEST_KNOWN[1], OLDEST[1] - 1, -1):
        name = "python3.{}".format(minor)
        if shutil.which(name) and succeeds([name, "-c", IS_RECENT]):
            return name
    raise Lacking(
        "needs Python {}.{} or newer and {} is {}.{}: {}; or name another one: make PYTHON=/path/to/python".format(
            *OLDEST, sys.executable, *sys.version_info[:2], install_hint(OLDEST)
        )
    )


def install_hint(version):
    """The command that brings Python `version` with its venv module to this machine."""
    package = "python{}.{}-venv".format(*version)
    if shutil.which("apt-get"):
        return "sudo apt-get install {}".format(package)
    return "install your system's package for Python {}.{} with venv and ensurepip".format(*version)


def make_venv(python):
    if not succeeds([VENV_PYTHON, "-c", IS_RECENT]):
        probe = [python, "-c", "import sys, venv, ensurepip; print(sys.version_info[:2])"]
        if not succeeds(probe):
            version = ast.literal_eval(output_of([python, "-c", "import sys; print(sys.version_info[:2])"]))
            raise Lacking("{} has no venv or no pip: {}".format(python, install_hint(version)))
        print("shardline: setting up .venv, once; most of the download is torch", file=sys.stderr)
        # --clear: what is there, if anything, is no working environment (its Python is gone, or too old).
        run([python, "-m", "venv", "--clear", VENV])
    elif not succeeds([VENV_PYTHON, "-c", "import pip"]):
        run([VENV_PYTHON, "-m", "ensurepip", "--upgrade"])


def install(extras):
    env = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_USER="0")
    run([VENV_PYTHON, "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS, "uv"], env)
    env.update(uv_settings(output_of([VENV_PYTHON, "-m", "pip", "config", "list"]), env))
    uv = os.path.join(VENV, "bin", "uv")
    # Where Python may not write it (PYTHONDONTWRITEBYTECODE), every process would compile torch for seconds.
    env.setdefault("UV_COMPILE_BYTECODE", "1")
    env.setdefault("UV_LINK_MODE", link_mode(output_of([uv, "cache", "dir"]).strip()))
    target = "{}[{}]".format(ROOT, ",".join(extras)) if extras else ROOT
    limits = ["--constraints", CONSTRAINTS, "--build-constraints", CONSTRAINTS]
    run([uv, "pip", "install", "--python", VENV_PYTHON, *limits, "--editable", target], env)


def uv_settings(pip_config, env):
    """The variables that give uv what `pip config list` printed, without those that `env` has already."""
    found = {}
    for line in pip_config.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found[key] = " ".join(str(ast.literal_eval(value)).split())
    settings = {}
    for name, variable in PIP_TO_UV.items():
        for section in (":env:", "install", "global"):  # pip's own order
            value = found.get("{}.{}".format(section, name))
            if value:
                settings.setdefault(variable, value)
    # pip takes these two from its HTTP library.
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if env.get(variable):
            settings.setdefault("SSL_CERT_FILE", env[variable])
    return {variable: value for variable, value in settings.items() if not env.get(variable)}


def link_mode(cache):
    """How uv puts files of its cache into .venv: hard links where one file system holds both, else copies.

    uv finds that out by itself, but then warns about something that nobody has to act on.
    """
    try:
        os.makedirs(cache, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache) as source, tempfile.TemporaryDirectory(dir=VENV) as folder:
            os.link(source.name, os.path.join(folder, "link"))
    except OSError:
        return "copy"
    return "hardlink"


def succeeds(command):
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def output_of(command):
    return subprocess.check_output(command, universal_newlines=True)


def run(command, env=None):
    subprocess.check_call(command, cwd=ROOT, env=env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
