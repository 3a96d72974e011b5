import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a consumer group, a thread each, for benches/rebalance: Kafka's own consumer, and what it tells an
 * application.
 *
 * <p>Arguments: BOOTSTRAP PROTOCOL TOPIC NAME SESSION_MS HEARTBEAT_MS (0: the client's defaults; with the protocol
 * "consumer" they are the broker's). Commands come on standard input, one a line, and its end ends the process:
 *
 * <pre>
 * clock            says the time
 * join GROUP N     makes N consumers, each connected and nothing more; says "prepared"
 * go               all of them subscribe and poll
 * close            all of them leave as an application does; says "closed"
 * </pre>
 *
 * <p>What happens is said on standard output, with System.nanoTime() (Linux: CLOCK_MONOTONIC), one event a line:
 * "assigned" and "revoked" with all partitions that the member has then, "read" with a partition at its first record
 * since it was assigned, "leaving" before a consumer is closed, "failed" with the reason.
 */
public final class Members {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final String bootstrap;
    private final String protocol;
    private final String topic;
    private final String name;
    private final int sessionMs;
    private final int heartbeatMs;
    private List<Member> members = List.of();
    private CountDownLatch go = new CountDownLatch(1);

    private Members(String[] words) {
        bootstrap = words[0];
        protocol = words[1];
        topic = words[2];
        name = words[3];
        sessionMs = Integer.parseInt(words[4]);
        heartbeatMs = Integer.parseInt(words[5]);
    }

    public static void main(String[] words) throws Exception {
        if (words.length != 6) {
            System.err.println("Members BOOTSTRAP PROTOCOL TOPIC NAME SESSION_MS HEARTBEAT_MS");
            System.exit(2);
        }
        Members all = new Members(words);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            all.obey(line.trim().split(" "));
        }
        // Whoever started us is gone, or has enough: without a word to the broker.
        Runtime.getRuntime().halt(0);
    }

    private void obey(String[] words) throws InterruptedException {
        switch (words[0]) {
            case "clock" -> say("clock " + name + " " + System.nanoTime());
            case "join" -> prepare(words[1], Integer.parseInt(words[2]));
            case "go" -> {
                say("went " + name + " " + System.nanoTime());
                go.countDown();
            }
            case "close" -> close();
            default -> say("failed " + name + " there is no command " + words[0]);
        }
    }

    private void prepare(String group, int count) throws InterruptedException {
        go = new CountDownLatch(1);
        CountDownLatch ready = new CountDownLatch(count);
        List<Member> made = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            made.add(new Member(name + "-" + n, settings(group, name + "-" + n), ready, go));
        }
        members = made;
        members.forEach(Thread::start);
        if (ready.await(120, TimeUnit.SECONDS)) {
            say("prepared " + name + " " + System.nanoTime());
        } else {
            say("failed " + name + " " + ready.getCount() + " consumers were not connected within 120 s");
        }
    }

    private void close() throws InterruptedException {
        for (Member member : members) {
            member.ending = true;
        }
        for (Member member : members) {
            member.join();
        }
        members = List.of();
        say("closed " + name + " " + System.nanoTime());
    }

    private Properties settings(String group, String id) {
        Properties of = new Properties();
        of.put("bootstrap.servers", bootstrap);
        of.put("group.id", group);
        of.put("client.id", id);
        of.put("group.protocol", protocol);
        // Nothing is committed: each new owner of a partition reads it from its beginning, so it has something to read.
        of.put("enable.auto.commit", "false");
        of.put("auto.offset.reset", "earliest");
        of.put("allow.auto.create.topics", "false");
        of.put("enable.metrics.push", "false");
        if (sessionMs > 0 && protocol.equals("classic")) {
            of.put("session.timeout.ms", Integer.toString(sessionMs));
            of.put("heartbeat.interval.ms", Integer.toString(heartbeatMs));
        }
        return of;
    }

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }

    private final class Member extends Thread implements ConsumerRebalanceListener {
        private final String id;
        private final Properties settings;
        private final CountDownLatch ready;
        private final CountDownLatch begin;
        private final Set<Integer> mine = new TreeSet<>();
        private final Set<Integer> seen = new TreeSet<>();
        private volatile boolean ending;

        Member(String id, Properties settings, CountDownLatch ready, CountDownLatch begin) {
            super(id);
            this.id = id;
            this.settings = settings;
            this.ready = ready;
            this.begin = begin;
            setDaemon(true);
        }

        @Override
        public void run() {
            ByteArrayDeserializer plain = new ByteArrayDeserializer();
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, plain, plain)) {
                consumer.partitionsFor(topic);
                ready.countDown();
                begin.await();
                consumer.subscribe(List.of(topic), this);
                while (!ending) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                        if (mine.contains(record.partition()) && seen.add(record.partition())) {
                            say("read " + id + " " + System.nanoTime() + " " + record.partition());
                        }
                    }
                }
                say("leaving " + id + " " + System.nanoTime());
            } catch (Exception | Error error) {
                say("failed " + id + " " + String.valueOf(error).replace('\n', ' '));
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            long at = System.nanoTime();
            added.forEach(partition -> mine.add(partition.partition()));
            tell("assigned", at);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> gone) {
            long at = System.nanoTime();
            for (TopicPartition partition : gone) {
                mine.remove(partition.partition());
                seen.remove(partition.partition());
            }
            tell("revoked", at);
        }

        private void tell(String what, long at) {
            String all = mine.stream().map(String::valueOf).collect(Collectors.joining(","));
            say(what + " " + id + " " + at + " " + (all.isEmpty() ? "-" : all));
        }
    }
}
