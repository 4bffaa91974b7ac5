import alluxio.conf.Configuration;
import alluxio.conf.PropertyKey;
import alluxio.master.LocalAlluxioCluster;
import alluxio.proxy.ProxyProcess;
import java.util.List;

/** A master, a worker and the proxy with the S3 API, until the standard input ends; takes the port and prints it. */
public class MiniAlluxio {
    public static void main(String[] arguments) throws Exception {
        var cluster = new LocalAlluxioCluster(1, false);
        cluster.initConfiguration("shardline");
        // Its default, the address of the machine, may not be reachable from the machine itself.
        for (var key : List.of(PropertyKey.MASTER_HOSTNAME, PropertyKey.WORKER_HOSTNAME, PropertyKey.USER_HOSTNAME,
                PropertyKey.MASTER_BIND_HOST, PropertyKey.WORKER_BIND_HOST, PropertyKey.PROXY_WEB_BIND_HOST,
                PropertyKey.PROXY_WEB_HOSTNAME)) {
            Configuration.set(key, "localhost");
        }
        cluster.start();
        Configuration.set(PropertyKey.MASTER_RPC_PORT, cluster.getMasterRpcPort());
        Configuration.set(PropertyKey.PROXY_WEB_PORT, Integer.parseInt(arguments[0]));
        var proxy = new Thread(() -> {
            try {
                ProxyProcess.Factory.create().start();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        });
        proxy.setDaemon(true);
        proxy.start();
        System.out.println("port " + arguments[0]);
        System.in.read();
        System.exit(0);
    }
}
