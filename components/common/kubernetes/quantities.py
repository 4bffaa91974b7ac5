"""Kubernetes' way of writing amounts (`500m`, `16Gi`), and the forms of its names. Pure.

Called by the config's schema and rules and by the builders. The grammar of quantities is that of
k8s.io/apimachinery/pkg/api/resource; the forms of names are those of k8s.io/apimachinery/pkg/util/validation.
"""

from __future__ import annotations

import re
from decimal import Decimal

_SUFFIXES = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    "": Decimal(1),
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(2) ** (10 * power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([numkKMGTPE]i?|[eE][-+]?\d+|)", re.ASCII)

#: A label of a domain name (RFC 1123): what most objects and the parts of their names are.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
#: A label that a Service may have (RFC 1035): it begins with a letter.
DNS_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
_QUALIFIED = rf"({DNS_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

#: The most characters of a label of a domain name, and of a label's value.
LABEL_LENGTH = 63
#: The most characters of an object's name where it need not be such a label.
NAME_LENGTH = 253


def amount(text: str) -> Decimal:
    """The number that the quantity `text` stands for, in units, bytes or cores.

    Raises:
        ValueError: it is no quantity, or none above zero.
    """
    match = _QUANTITY.fullmatch(text)
    suffix = match[2] if match else ""
    if match is None or not (suffix in _SUFFIXES or suffix[0] in "eE"):
        raise ValueError("should be a quantity as Kubernetes writes it, such as 500m, 4, 16Gi or 1.5G")
    number = Decimal(match[1]) * (_SUFFIXES[suffix] if suffix in _SUFFIXES else Decimal(10) ** int(suffix[1:]))
    if number <= 0:
        raise ValueError("should be above zero")
    return number


def is_label(text: str) -> bool:
    return len(text) <= LABEL_LENGTH and re.fullmatch(DNS_LABEL, text) is not None


def is_subdomain(text: str) -> bool:
    return len(text) <= NAME_LENGTH and re.fullmatch(DNS_SUBDOMAIN, text) is not None


def is_qualified(text: str) -> bool:
    """Whether `text` may be the key of a label, a taint or a resource."""
    return len(text.rpartition("/")[2]) <= LABEL_LENGTH and re.fullmatch(_QUALIFIED, text) is not None


def is_label_value(text: str) -> bool:
    return len(text) <= LABEL_LENGTH and re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", text) is not None
