import java.io.File;
import org.apache.bookkeeper.bookie.BookieImpl;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;

/** Apache BookKeeper's auditor without the replication worker, which no setting of its own leaves out. */
public final class AuditorOnly {
    public static void main(String[] arguments) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new File(arguments[0]).toURI().toURL());
        new AuditorElector(BookieImpl.getBookieId(conf).toString(), conf).start();
        Thread.currentThread().join(); // Until it is killed.
    }
}
