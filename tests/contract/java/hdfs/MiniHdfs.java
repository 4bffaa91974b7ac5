import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A NameNode and a DataNode in the folder given, until the standard input ends; prints the port. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        var folder = Path.of(arguments[0]).toFile();
        var cluster = new MiniDFSCluster.Builder(new Configuration(), folder).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("port " + cluster.getNameNodePort());
        System.in.read();
        System.exit(0);
    }
}
