import java.io.File;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;

/** The id that Apache BookKeeper's bookie takes from each configuration file, or what keeps it from starting. */
public final class Ids {
    public static void main(String[] paths) throws Exception {
        for (String path : paths) {
            ServerConfiguration conf = new ServerConfiguration();
            conf.loadConf(new File(path).toURI().toURL());
            String id;
            try {
                BookieImpl.getBookieAddress(conf); // A bookie asks for both as it starts.
                id = BookieImpl.getBookieId(conf).toString();
            } catch (java.net.UnknownHostException error) {
                id = "";
            }
            System.out.println(id);
        }
    }
}
