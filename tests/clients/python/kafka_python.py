"""kafka-python."""

import logging

import kafka
from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType
from verbs import STOPPED, Enough, Refused, main, say, say_record

logging.getLogger("kafka").setLevel(logging.CRITICAL)


class Listener(kafka.ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        say(assigned=[])

    def on_partitions_assigned(self, assigned):
        say(assigned=sorted(spot.partition for spot in assigned))


def must(answer):
    """`answer`: an error class of kafka-python, or its name, or OK."""
    name = answer if isinstance(answer, str) else answer.__name__
    if name not in ("OK", "NoError"):
        raise Refused(getattr(getattr(errors, name, None), "errno", None), name)


class Client:
    def __init__(self, address):
        self.address, self.made = address, None

    @property
    def admin(self):
        self.made = self.made or kafka.KafkaAdminClient(bootstrap_servers=self.address, request_timeout_ms=20000)
        return self.made

    def create(self, a):
        wanted = {"num_partitions": a.partitions, "replication_factor": 1, "configs": a.settings}
        self.admin.create_topics({a.topic: wanted}, timeout_ms=20000)

    def produce(self, a):
        acks, codec = a.text("acks", "all"), a.text("codec", "none")
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=a.flag("idempotent"),
            batch_size=500 if a.flag("small") else 16384,
            linger_ms=0 if a.flag("small") else 5,
            max_request_size=2_000_000,
            delivery_timeout_ms=60000,
            request_timeout_ms=10000,
            reconnect_backoff_max_ms=500,
        )

        def good(number):
            return lambda done: say(record=number, partition=done.partition, offset=done.offset)

        def bad(number):
            return lambda error: say(record=number, failed=f"{type(error).__name__}: {error}")

        for number, partition, key, value, headers, when in a.records():
            future = producer.send(
                a.topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=when
            )
            future.add_callback(good(number))
            future.add_errback(bad(number))
            a.pause()
        producer.flush(70)
        producer.close(10)

    def consumer(self, **more):
        return kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=300,
            **more,
        )

    def spots(self, a):
        return [kafka.TopicPartition(a.topic, p) for p in range(a.partitions)]

    def show(self, m):
        say_record(m.partition, m.offset, m.key, m.value, m.headers, m.timestamp)

    def consume(self, a):
        consumer, spots, start = self.consumer(), self.spots(a), a.text("start", "earliest")
        consumer.assign(spots)
        if start == "earliest":
            consumer.seek_to_beginning(*spots)
        elif start == "latest":
            consumer.seek_to_end(*spots)
        elif start.startswith("@"):
            for spot, place in consumer.offsets_for_times({spot: int(start[1:]) for spot in spots}).items():
                consumer.seek_to_end(spot) if place is None else consumer.seek(spot, place.offset)
        else:
            for spot in spots:
                consumer.seek(spot, int(start))
        for spot in spots:
            consumer.position(spot, timeout_ms=15000)
        say(ready=True)
        enough = Enough(a)
        while not enough:
            for messages in consumer.poll(timeout_ms=100).values():
                for message in messages:
                    self.show(message)
                    enough.one()
        consumer.close()

    def offsets(self, a):
        consumer, spots = self.consumer(), self.spots(a)
        for at in a.times():
            if at == "earliest":
                found = consumer.beginning_offsets(spots)
            elif at == "latest":
                found = consumer.end_offsets(spots)
            else:
                times = consumer.offsets_for_times({spot: int(at) for spot in spots})
                found = {spot: place.offset if place else -1 for spot, place in times.items()}
            for spot in spots:
                say(at=at, partition=spot.partition, offset=found[spot])
        consumer.close()

    def member(self, a):
        consumer = self.consumer(
            group_id=a.group, session_timeout_ms=6000, heartbeat_interval_ms=500, max_poll_records=25
        )
        consumer.subscribe([a.topic], listener=Listener())
        limit, once, came, following = a.number("limit"), a.number("commit"), 0, {}

        def commit():
            spots = {kafka.TopicPartition(a.topic, p): kafka.OffsetAndMetadata(o, "", -1) for p, o in following.items()}
            try:
                consumer.commit(spots)
                say(committed={str(p): offset for p, offset in following.items()})
            except errors.KafkaError as error:
                say(refused=f"{type(error).__name__}: {error}")
            following.clear()

        while not STOPPED.is_set() and not (limit and came >= limit):
            for messages in consumer.poll(timeout_ms=100).values():
                for message in messages:
                    if limit and came >= limit:
                        break
                    came += 1
                    self.show(message)
                    following[message.partition] = message.offset + 1
                    if came == once:
                        commit()
            if not once and following:
                commit()
        consumer.close(autocommit=False)

    def committed(self, a):
        spots = self.spots(a)
        found = self.admin.list_group_offsets({a.group: spots})[a.group]
        for spot in spots:
            say(partition=spot.partition, offset=found[spot].offset if spot in found else -1)

    def topics(self, _):
        say(topics=sorted(self.admin.list_topics()))

    def describe(self, a):
        (found,) = self.admin.describe_topics([a.topic])
        must(errors.for_code(found["error_code"]))
        say(partitions=len(found["partitions"]))

    def config(self, a):
        names = a.text("names").split(",")
        resource = ConfigResource(ConfigResourceType.TOPIC, a.topic, configs=names)
        found = self.admin.describe_configs([resource], config_filter="all")["topic"][a.topic]
        for name in names:
            say(name=name, value=found[name]["value"])

    def alter(self, a):
        self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, a.topic, configs=a.settings)])

    def grow(self, a):
        self.admin.create_partitions({a.topic: a.partitions}, timeout_ms=20000)

    def delete_records(self, a):
        spot = kafka.TopicPartition(a.topic, a.number("partition"))
        self.admin.delete_records({spot: a.number("before")}, timeout_ms=20000)

    def delete(self, a):
        self.admin.delete_topics([a.topic], timeout_ms=20000)

    def groups(self, _):
        say(groups=[group["group_id"] for group in self.admin.list_groups()])

    def group(self, a):
        found = self.admin.describe_groups([a.group])[a.group]
        if found["error"]:
            raise RuntimeError(found["error"])
        say(state=found["group_state"], members=len(found["members"]))

    def delete_offsets(self, a):
        spot = kafka.TopicPartition(a.topic, a.number("partition"))
        must(self.admin.delete_group_offsets(a.group, [spot])[spot])

    def delete_group(self, a):
        must(self.admin.delete_groups([a.group])[a.group])


main(Client)
