"""librdkafka through confluent-kafka."""

import confluent_kafka as ck
from confluent_kafka import admin as ka
from verbs import STOPPED, Enough, main, nobody, say, say_record

EARLY, LATE = ck.OFFSET_BEGINNING, ck.OFFSET_END


class Client:
    def __init__(self, address):
        self.common = {"bootstrap.servers": address, "socket.timeout.ms": 15000, "reconnect.backoff.max.ms": 500}
        self.made = None

    @property
    def admin(self):
        self.made = self.made or ka.AdminClient(self.common)
        return self.made

    def done(self, futures):
        (future,) = futures.values()
        return future.result(30)

    def create(self, a):
        new = ka.NewTopic(a.topic, a.partitions, 1, config=a.settings)
        self.done(self.admin.create_topics([new], operation_timeout=20))

    def produce(self, a):
        conf = {**self.common, "acks": a.text("acks", "all"), "compression.type": a.text("codec", "none")}
        conf |= {"message.timeout.ms": 60000, "message.max.bytes": 2_000_000, "linger.ms": 0 if a.flag("small") else 5}
        if a.flag("small"):
            conf["batch.num.messages"] = 10
        if a.flag("idempotent"):
            conf |= {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5}
        producer = ck.Producer(conf)

        def report(number):
            def done(error, message):
                if error:
                    say(record=number, failed=str(error))
                else:
                    say(record=number, partition=message.partition(), offset=message.offset())

            return done

        for number, partition, key, value, headers, when in a.records():
            more = {} if when is None else {"timestamp": when}
            producer.produce(
                a.topic, value=value, key=key, partition=partition, headers=headers, on_delivery=report(number), **more
            )
            producer.poll(0)
            a.pause()
        left = producer.flush(60)
        if left:
            raise TimeoutError(f"{left} records were not answered within 60 s")

    def consumer(self, group, **more):
        conf = {**self.common, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return ck.Consumer({**conf, "fetch.wait.max.ms": 300, **more})

    def consume(self, a):
        consumer = self.consumer(nobody(), **{"enable.partition.eof": True})
        start = a.text("start", "earliest")
        spots = [ck.TopicPartition(a.topic, p) for p in range(a.partitions)]
        if start.startswith("@"):
            for spot in spots:
                spot.offset = int(start[1:])
            spots = consumer.offsets_for_times(spots, timeout=15)
        else:
            for spot in spots:
                spot.offset = {"earliest": EARLY, "latest": LATE}.get(start) or int(start)
        consumer.assign(spots)
        enough, ends = Enough(a), set()
        if start != "latest":
            say(ready=True)
        while not enough:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if error := message.error():
                if error.code() != ck.KafkaError._PARTITION_EOF:
                    raise ck.KafkaException(error)
                if start == "latest" and len(ends) < a.partitions:
                    ends.add(message.partition())
                    if len(ends) == a.partitions:
                        say(ready=True)
                continue
            self.show(message)
            enough.one()
        consumer.close()

    def show(self, m):
        say_record(m.partition(), m.offset(), m.key(), m.value(), m.headers(), m.timestamp()[1])

    def offsets(self, a):
        consumer = self.consumer(nobody())
        for at in a.times():
            for p in range(a.partitions):
                if at in ("earliest", "latest"):
                    low, high = consumer.get_watermark_offsets(ck.TopicPartition(a.topic, p), timeout=15)
                    offset = low if at == "earliest" else high
                else:
                    (found,) = consumer.offsets_for_times([ck.TopicPartition(a.topic, p, int(at))], timeout=15)
                    offset = found.offset if found.offset >= 0 else -1
                say(at=at, partition=p, offset=offset)
        consumer.close()

    def member(self, a):
        conf = {"group.protocol": "consumer"}
        if a.text("protocol", "classic") == "classic":
            conf = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        consumer, owned, following = self.consumer(a.group, **conf), set(), {}
        limit, once, came = a.number("limit"), a.number("commit"), 0

        def gained(_, spots):
            owned.update(spot.partition for spot in spots)
            say(assigned=sorted(owned))

        def lost(_, spots):
            owned.difference_update(spot.partition for spot in spots)
            say(assigned=sorted(owned))

        def commit():
            spots = [ck.TopicPartition(a.topic, p, offset) for p, offset in following.items()]
            try:
                consumer.commit(offsets=spots, asynchronous=False)
                say(committed={str(p): offset for p, offset in following.items()})
            except ck.KafkaException as error:
                say(refused=str(error))
            following.clear()

        consumer.subscribe([a.topic], on_assign=gained, on_revoke=lost, on_lost=lost)
        while not STOPPED.is_set() and not (limit and came >= limit):
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                came += 1
                self.show(message)
                following[message.partition()] = message.offset() + 1
                if came == once:
                    commit()
            elif message is not None:
                say(trouble=str(message.error()))
            if not once and following and (message is None or came % 25 == 0):
                commit()
        if not once and following:
            commit()
        consumer.close()

    def committed(self, a):
        consumer = self.consumer(a.group)
        spots = consumer.committed([ck.TopicPartition(a.topic, p) for p in range(a.partitions)], timeout=15)
        for spot in spots:
            say(partition=spot.partition, offset=spot.offset if spot.offset >= 0 else -1)
        consumer.close()

    def topics(self, _):
        say(topics=sorted(self.admin.list_topics(timeout=15).topics))

    def describe(self, a):
        say(partitions=len(self.admin.list_topics(a.topic, timeout=15).topics[a.topic].partitions))

    def config(self, a):
        found = self.done(self.admin.describe_configs([ka.ConfigResource(ka.ConfigResource.Type.TOPIC, a.topic)]))
        for name in a.text("names").split(","):
            say(name=name, value=found[name].value)

    def alter(self, a):
        entries = [
            ka.ConfigEntry(name, value, incremental_operation=ka.AlterConfigOpType.SET)
            for name, value in a.settings.items()
        ]
        resource = ka.ConfigResource(ka.ConfigResource.Type.TOPIC, a.topic, incremental_configs=entries)
        self.done(self.admin.incremental_alter_configs([resource]))

    def grow(self, a):
        self.done(self.admin.create_partitions([ka.NewPartitions(a.topic, a.partitions)], operation_timeout=20))

    def delete_records(self, a):
        spot = ck.TopicPartition(a.topic, a.number("partition"), a.number("before"))
        self.done(self.admin.delete_records([spot]))

    def delete(self, a):
        self.done(self.admin.delete_topics([a.topic], operation_timeout=20))

    def groups(self, _):
        say(groups=[group.group_id for group in self.admin.list_consumer_groups().result(30).valid])

    def group(self, a):
        found = self.done(self.admin.describe_consumer_groups([a.group]))
        say(state=found.state.name, members=len(found.members))

    def delete_group(self, a):
        self.done(self.admin.delete_consumer_groups([a.group]))


main(Client)
