import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words with Kafka Streams until SIGTERM; a word is one character of a value. It repartitions, so that words of
 * both partitions meet, and its store has a changelog, from which a second life restores what the first one counted.
 */
final class Words {
    private Words() {}

    static void run(String address, Client.Options a) throws Exception {
        Properties conf = new Properties();
        conf.put("application.id", a.text("application", "words"));
        conf.put("bootstrap.servers", address);
        conf.put("state.dir", a.text("state", "state"));
        conf.put("commit.interval.ms", "100");
        conf.put("statestore.cache.max.bytes", "0");
        conf.put("consumer.session.timeout.ms", "6000");
        conf.put("consumer.heartbeat.interval.ms", "500");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(a.topic(), Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .flatMapValues(text -> Arrays.asList(text.split("")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> String.valueOf(count))
            .to(a.text("to", "counts"), Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), conf);
        Throwable[] failed = {null};
        streams.setUncaughtExceptionHandler(error -> {
            failed[0] = error;
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                Client.say("running", true);
            }
        });
        streams.start();
        while (!Client.stopped && failed[0] == null) {
            Thread.sleep(50);
        }
        streams.close(Duration.ofSeconds(10));
        if (failed[0] != null) {
            throw new IllegalStateException(String.valueOf(failed[0]), failed[0]);
        }
    }
}
