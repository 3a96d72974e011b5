import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client, as tests/clients asks for it: see README.md there for the verbs and what they say. */
public final class Client {
    static volatile boolean stopped;
    private final String address;
    private Admin admin;

    private Client(String address) {
        this.address = address;
    }

    public static void main(String[] words) throws Exception {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped = true;
            try {
                main.join(20_000);
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        Client client = new Client(words[0]);
        List<String> rest = Arrays.asList(words).subList(1, words.length);
        while (!rest.isEmpty()) {
            int cut = rest.contains("then") ? rest.indexOf("then") : rest.size();
            Options a = new Options(rest.get(0), rest.subList(1, cut));
            rest = rest.subList(Math.min(cut + 1, rest.size()), rest.size());
            try {
                client.verb(a);
            } catch (Exception failed) {
                Throwable error = cause(failed);
                short code = Errors.forException(error).code();
                say("error", error.toString(), "code", (int) code, "verb", a.verb);
                if (!a.text("may", "").equals("fail")) {
                    // In a hook's time nobody may exit a second time: the hook would wait for this thread.
                    if (!stopped) {
                        Runtime.getRuntime().halt(1);
                    }
                    return;
                }
            }
            say("end", a.verb);
        }
        if (client.admin != null) {
            client.admin.close(Duration.ofSeconds(5));
        }
    }

    private void verb(Options a) throws Exception {
        switch (a.verb) {
            case "create" -> create(a);
            case "produce" -> produce(a);
            case "consume" -> consume(a);
            case "offsets" -> offsets(a);
            case "member" -> member(a);
            case "committed" -> committed(a);
            case "topics" -> say("topics", new TreeSet<>(get(admin().listTopics().names())));
            case "describe" -> say("partitions", describe(a.topic()).size());
            case "config" -> config(a);
            case "alter" -> alter(a);
            case "grow" -> grow(a);
            case "delete_records" -> get(admin().deleteRecords(
                Map.of(a.at(a.number("partition", 0)), RecordsToDelete.beforeOffset(a.number("before", 0)))).all());
            case "delete" -> get(admin().deleteTopics(List.of(a.topic())).all());
            case "groups" -> say("groups", groups());
            case "group" -> {
                ConsumerGroupDescription found = group(a);
                say("state", found.groupState().toString(), "members", found.members().size());
            }
            case "delete_offsets" -> get(admin().deleteConsumerGroupOffsets(
                a.group(), Set.of(a.at(a.number("partition", 0)))).all());
            case "delete_group" -> get(admin().deleteConsumerGroups(List.of(a.group())).all());
            case "console" -> console(a);
            case "words" -> Words.run(address, a);
            default -> throw new IllegalArgumentException("no such verb: " + a.verb);
        }
    }

    // Records

    private void create(Options a) throws Exception {
        NewTopic topic = new NewTopic(a.topic(), a.partitions(), (short) 1).configs(a.settings());
        get(admin().createTopics(List.of(topic)).all());
    }

    private void produce(Options a) throws Exception {
        Properties conf = common();
        boolean small = a.flag("small");
        conf.put("acks", a.text("acks", "all"));
        conf.put("compression.type", a.text("codec", "none"));
        conf.put("enable.idempotence", String.valueOf(a.flag("idempotent")));
        conf.put("linger.ms", small ? "0" : "5");
        conf.put("batch.size", small ? "500" : "16384");
        conf.put("max.request.size", "2000000");
        conf.put("request.timeout.ms", "10000");
        conf.put("delivery.timeout.ms", "60000");
        String time = a.text("time", "");
        long size = a.number("size", 0);
        boolean mixed = a.text("shape", "plain").equals("mixed");
        try (var producer = new KafkaProducer<>(conf, new ByteArraySerializer(), new ByteArraySerializer())) {
            long first = a.number("from", 0);
            for (long i = first; i < first + a.number("count", 0); i++) {
                long number = i;
                byte[] key = mixed && i % 5 != 0 ? bytes("key-" + i) : null;
                byte[] value = mixed && i % 5 == 3 ? null : value(i, (int) size);
                List<Header> headers = mixed && i % 2 == 1
                    ? List.of(new RecordHeader("n", bytes("" + i)), new RecordHeader("mark", bytes("\u00fc")))
                    : List.of();
                Long when = time.isEmpty() ? null : Long.valueOf(Long.parseLong(time) + 1000 * i);
                int partition = (int) (i % a.partitions());
                producer.send(new ProducerRecord<>(a.topic(), partition, when, key, value, headers), (done, error) -> {
                    if (error == null) {
                        long offset = done.hasOffset() ? done.offset() : -1;
                        say("record", number, "partition", done.partition(), "offset", offset);
                    } else {
                        say("record", number, "failed", error.toString());
                    }
                });
                if (a.number("pace", 0) > 0) {
                    Thread.sleep(a.number("pace", 0));
                }
            }
            producer.flush();
        }
    }

    private static byte[] value(long number, int size) {
        byte[] digits = bytes(String.valueOf(number));
        byte[] value = Arrays.copyOf(digits, Math.max(size, digits.length));
        Arrays.fill(value, digits.length, value.length, (byte) '.');
        return value;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String... more) {
        Properties conf = common();
        conf.put("enable.auto.commit", "false");
        conf.put("auto.offset.reset", "earliest");
        conf.put("fetch.max.wait.ms", "300");
        conf.put("max.poll.records", "25");
        for (int i = 0; i < more.length; i += 2) {
            conf.put(more[i], more[i + 1]);
        }
        return new KafkaConsumer<>(conf, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void show(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> headers = new LinkedHashMap<>();
        for (Header header : record.headers()) {
            headers.put(header.key(), string(header.value()));
        }
        byte[] value = record.value();
        Long crc = null;
        if (value != null) {
            CRC32 sum = new CRC32();
            sum.update(value);
            crc = sum.getValue();
        }
        say("partition", record.partition(), "offset", record.offset(), "key", string(record.key()),
            "value", value == null ? null : string(Arrays.copyOf(value, Math.min(64, value.length))),
            "size", value == null ? null : value.length, "crc", crc, "headers", headers, "time", record.timestamp());
    }

    private void consume(Options a) throws Exception {
        try (var consumer = consumer()) {
            List<TopicPartition> all = a.all();
            String start = a.text("start", "earliest");
            consumer.assign(all);
            if (start.equals("earliest")) {
                consumer.seekToBeginning(all);
            } else if (start.equals("latest")) {
                consumer.seekToEnd(all);
            } else if (start.startsWith("@")) {
                var found = consumer.offsetsForTimes(times(all, Long.parseLong(start.substring(1))));
                for (TopicPartition at : all) {
                    if (found.get(at) == null) {
                        consumer.seekToEnd(List.of(at));
                    } else {
                        consumer.seek(at, found.get(at).offset());
                    }
                }
            } else {
                all.forEach(at -> consumer.seek(at, Long.parseLong(start)));
            }
            for (TopicPartition at : all) {
                consumer.position(at, Duration.ofSeconds(15));
            }
            say("ready", true);
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(a.number("seconds", 30));
            long quiet = TimeUnit.MILLISECONDS.toNanos(a.number("quiet", 0));
            long came = 0;
            long since = System.nanoTime();
            while (came < a.number("count", 0) || System.nanoTime() - since < quiet) {
                if (System.nanoTime() > deadline) {
                    throw new TimeoutException(came + " of " + a.number("count", 0) + " records came in time");
                }
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    show(record);
                    came++;
                    since = System.nanoTime();
                }
            }
        }
    }

    private static Map<TopicPartition, Long> times(List<TopicPartition> all, long time) {
        return all.stream().collect(Collectors.toMap(at -> at, at -> time));
    }

    private void offsets(Options a) {
        try (var consumer = consumer()) {
            for (String at : a.text("at", "latest").split(",")) {
                Map<TopicPartition, Long> found = new HashMap<>();
                if (at.equals("earliest")) {
                    found = consumer.beginningOffsets(a.all());
                } else if (at.equals("latest")) {
                    found = consumer.endOffsets(a.all());
                } else {
                    for (var place : consumer.offsetsForTimes(times(a.all(), Long.parseLong(at))).entrySet()) {
                        OffsetAndTimestamp offset = place.getValue();
                        found.put(place.getKey(), offset == null ? -1 : offset.offset());
                    }
                }
                for (TopicPartition spot : a.all()) {
                    say("at", at, "partition", spot.partition(), "offset", found.getOrDefault(spot, -1L));
                }
            }
        }
    }

    // Groups

    private void member(Options a) {
        String[] classic = {"session.timeout.ms", "6000", "heartbeat.interval.ms", "500"};
        List<String> conf = new ArrayList<>(List.of("group.id", a.group()));
        if (a.text("protocol", "classic").equals("classic")) {
            conf.addAll(List.of(classic));
        } else {
            conf.addAll(List.of("group.protocol", "consumer"));
        }
        long limit = a.number("limit", 0);
        long once = a.number("commit", 0);
        long came = 0;
        Set<Integer> owned = new TreeSet<>();
        Map<TopicPartition, OffsetAndMetadata> following = new HashMap<>();
        try (var consumer = consumer(conf.toArray(new String[0]))) {
            consumer.subscribe(List.of(a.topic()), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> gained) {
                    gained.forEach(at -> owned.add(at.partition()));
                    say("assigned", owned);
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> lost) {
                    lost.forEach(at -> owned.remove(at.partition()));
                    say("assigned", owned);
                }
            });
            while (!stopped && (limit == 0 || came < limit)) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    if (limit > 0 && came >= limit) {
                        break;
                    }
                    came++;
                    show(record);
                    following.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                    if (came == once) {
                        commit(consumer, following);
                    }
                }
                if (once == 0 && !following.isEmpty()) {
                    commit(consumer, following);
                }
            }
        }
    }

    private static void commit(
            KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, OffsetAndMetadata> following) {
        try {
            consumer.commitSync(following, Duration.ofSeconds(15));
            Map<String, Object> shown = new LinkedHashMap<>();
            following.forEach((at, offset) -> shown.put(String.valueOf(at.partition()), offset.offset()));
            say("committed", shown);
        } catch (KafkaException error) {
            say("refused", error.toString());
        }
        following.clear();
    }

    private void committed(Options a) throws Exception {
        var found = get(admin().listConsumerGroupOffsets(a.group()).partitionsToOffsetAndMetadata());
        for (TopicPartition at : a.all()) {
            OffsetAndMetadata offset = found.get(at);
            say("partition", at.partition(), "offset", offset == null ? -1 : offset.offset());
        }
    }

    // Administration

    private Admin admin() {
        if (admin == null) {
            admin = Admin.create(common());
        }
        return admin;
    }

    private List<?> describe(String topic) throws Exception {
        return get(admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions();
    }

    private Config configOf(ConfigResource.Type type, String name) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        return get(admin().describeConfigs(List.of(resource)).all()).get(resource);
    }

    private void config(Options a) throws Exception {
        Config found = configOf(ConfigResource.Type.TOPIC, a.topic());
        for (String name : a.text("names", "").split(",")) {
            say("name", name, "value", found.get(name).value());
        }
    }

    private void alter(Options a) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, a.topic());
        Collection<AlterConfigOp> set = a.settings().entrySet().stream()
            .map(entry -> new ConfigEntry(entry.getKey(), entry.getValue()))
            .map(entry -> new AlterConfigOp(entry, AlterConfigOp.OpType.SET))
            .collect(Collectors.toList());
        get(admin().incrementalAlterConfigs(Map.of(resource, set)).all());
    }

    private void grow(Options a) throws Exception {
        get(admin().createPartitions(Map.of(a.topic(), NewPartitions.increaseTo(a.partitions()))).all());
    }

    private List<String> groups() throws Exception {
        return get(admin().listGroups().all()).stream().map(GroupListing::groupId).collect(Collectors.toList());
    }

    private ConsumerGroupDescription group(Options a) throws Exception {
        return get(admin().describeConsumerGroups(List.of(a.group())).all()).get(a.group());
    }

    /** What Kafka-UI, AKHQ and Kafdrop ask with this very client when they are opened. */
    private void console(Options a) throws Exception {
        Collection<Node> nodes = get(admin().describeCluster().nodes());
        List<Integer> ids = nodes.stream().map(Node::id).collect(Collectors.toList());
        ask("cluster", () -> get(admin().describeCluster().clusterId()) == null ? 0 : nodes.size());
        ask("topics", () -> get(admin().listTopics().names()).size());
        ask("describe_topics", () -> describe(a.topic()).size());
        ask("topic_configs", () -> configOf(ConfigResource.Type.TOPIC, a.topic()).entries().size());
        ask("broker_configs", () -> configOf(ConfigResource.Type.BROKER, String.valueOf(ids.get(0))).entries().size());
        Map<TopicPartition, OffsetSpec> ends = new HashMap<>();
        a.all().forEach(at -> ends.put(at, OffsetSpec.latest()));
        ask("end_offsets", () -> get(admin().listOffsets(ends).all()).size());
        ask("groups", () -> (int) groups().stream().filter(a.group()::equals).count());
        ask("group", () -> group(a).groupState() == null ? 0 : 1);
        ask("group_offsets",
            () -> get(admin().listConsumerGroupOffsets(a.group()).partitionsToOffsetAndMetadata()).size());
        ask("log_dirs", () -> get(admin().describeLogDirs(ids).allDescriptions()).values().stream()
            .flatMap(dirs -> dirs.values().stream())
            .flatMap(dir -> dir.replicaInfos().keySet().stream())
            .mapToInt(at -> at.topic().equals(a.topic()) ? 1 : 0)
            .sum());
        ask("acls", () -> get(admin().describeAcls(AclBindingFilter.ANY).values()).size());
        ask("quotas", () -> get(admin().describeClientQuotas(ClientQuotaFilter.all()).entities()).size());
        ask("scram", () -> get(admin().describeUserScramCredentials().all()).size());
    }

    private static void ask(String call, Callable<Integer> question) {
        try {
            say("call", call, "found", question.call());
        } catch (Exception failed) {
            say("call", call, "error", cause(failed).toString());
        }
    }

    // Around it

    private Properties common() {
        Properties conf = new Properties();
        conf.put("bootstrap.servers", address);
        conf.put("reconnect.backoff.max.ms", "500");
        conf.put("default.api.timeout.ms", "30000");
        return conf;
    }

    private static Throwable cause(Exception failed) {
        return failed instanceof ExecutionException && failed.getCause() != null ? failed.getCause() : failed;
    }

    private static <T> T get(org.apache.kafka.common.KafkaFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String string(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** One JSON object from names and values after each other, on a line of its own. */
    static synchronized void say(Object... pairs) {
        Map<String, Object> event = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            event.put((String) pairs[i], pairs[i + 1]);
        }
        System.out.println(json(event));
        System.out.flush();
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(entry -> json(entry.getKey()) + ":" + json(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> list) {
            return list.stream().map(Client::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        StringBuilder out = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    /** The arguments of one verb. */
    static final class Options {
        final String verb;
        private final Map<String, String> words = new HashMap<>();

        Options(String verb, List<String> pairs) {
            this.verb = verb;
            for (String pair : pairs) {
                int cut = pair.indexOf('=');
                words.put(pair.substring(0, cut), pair.substring(cut + 1));
            }
        }

        String text(String name, String otherwise) {
            return words.getOrDefault(name, otherwise);
        }

        long number(String name, long otherwise) {
            return words.containsKey(name) ? Long.parseLong(words.get(name)) : otherwise;
        }

        boolean flag(String name) {
            return number(name, 0) == 1;
        }

        String topic() {
            return words.get("topic");
        }

        String group() {
            return words.getOrDefault("group", "nobody-" + UUID.randomUUID());
        }

        int partitions() {
            return (int) number("partitions", 1);
        }

        TopicPartition at(long partition) {
            return new TopicPartition(topic(), (int) partition);
        }

        List<TopicPartition> all() {
            return IntStream.range(0, partitions()).mapToObj(this::at).collect(Collectors.toList());
        }

        /** {@code set=a:b,c:d} */
        Map<String, String> settings() {
            Map<String, String> out = new HashMap<>();
            for (String pair : text("set", "").split(",")) {
                if (!pair.isEmpty()) {
                    out.put(pair.substring(0, pair.indexOf(':')), pair.substring(pair.indexOf(':') + 1));
                }
            }
            return Collections.unmodifiableMap(out);
        }
    }
}
