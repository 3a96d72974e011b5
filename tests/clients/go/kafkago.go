package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

type kafkaGo struct {
	address string
	client  *kafka.Client
}

func newKafkaGo(address string) (backend, error) {
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond, ClientID: "camus-tests"}
	return &kafkaGo{address, &kafka.Client{Addr: kafka.TCP(address), Timeout: 30 * time.Second, Transport: transport}}, nil
}

func (k *kafkaGo) code(err error) int {
	var known kafka.Error
	if errors.As(err, &known) {
		return int(known)
	}
	return -1
}

func (k *kafkaGo) create(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	topic := kafka.TopicConfig{Topic: o.topic(), NumPartitions: o.partitions(), ReplicationFactor: 1}
	for name, value := range o.settings() {
		topic.ConfigEntries = append(topic.ConfigEntries, kafka.ConfigEntry{ConfigName: name, ConfigValue: value})
	}
	answer, err := k.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}})
	if err != nil {
		return err
	}
	return answer.Errors[o.topic()]
}

func (k *kafkaGo) produce(o options) error {
	codecs := map[string]kafka.Compression{
		"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
	acks := map[string]kafka.RequiredAcks{"0": kafka.RequireNone, "1": kafka.RequireOne, "all": kafka.RequireAll}
	writer := &kafka.Writer{
		Addr: kafka.TCP(k.address), Topic: o.topic(), RequiredAcks: acks[o.text("acks", "all")],
		Compression: codecs[o.text("codec", "none")], BatchTimeout: 5 * time.Millisecond, BatchSize: 100,
		BatchBytes: 1_040_000, MaxAttempts: 50, Async: true, Transport: &kafka.Transport{ClientID: "camus-tests"},
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int { return m.WriterData.(record).partition }),
		Completion: func(messages []kafka.Message, err error) {
			for _, m := range messages {
				if number := m.WriterData.(record).number; err != nil {
					failed(number, err)
				} else {
					acknowledged(number, m.Partition, m.Offset)
				}
			}
		},
	}
	if o.flag("small") {
		writer.BatchSize = 10
	}
	ctx, cancel := within(90 * time.Second)
	defer cancel()
	for _, r := range o.records() {
		m := kafka.Message{Key: r.key, Value: r.value, Time: r.when, WriterData: r}
		for _, h := range r.headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.name, Value: h.value})
		}
		if err := writer.WriteMessages(ctx, m); err != nil {
			failed(r.number, err)
		}
		o.pause()
	}
	return writer.Close()
}

func (k *kafkaGo) show(m kafka.Message) {
	var headers []header
	for _, h := range m.Headers {
		headers = append(headers, header{h.Key, h.Value})
	}
	show(m.Partition, m.Offset, m.Key, m.Value, headers, m.Time)
}

func (k *kafkaGo) reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{k.address}, Topic: topic, Partition: partition, MinBytes: 1, MaxBytes: 10 << 20,
		MaxWait: 300 * time.Millisecond,
	})
}

func (k *kafkaGo) consume(o options) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, troubles := make(chan kafka.Message), make(chan error, 16)
	start := o.text("start", "earliest")
	for p := 0; p < o.partitions(); p++ {
		reader := k.reader(o.topic(), p)
		defer reader.Close()
		var err error
		switch {
		case start == "earliest":
			err = reader.SetOffset(kafka.FirstOffset)
		case start == "latest":
			var end int64
			if end, err = k.offset(o.topic(), p, "latest"); err == nil {
				err = reader.SetOffset(end)
			}
		case start[0] == '@':
			when := options{words: map[string]string{"t": start[1:]}}
			err = reader.SetOffsetAt(ctx, time.UnixMilli(int64(when.number("t", 0))))
		default:
			err = reader.SetOffset(int64(o.number("start", 0)))
		}
		if err != nil {
			return err
		}
		go func() {
			for ctx.Err() == nil {
				m, err := reader.ReadMessage(ctx)
				if err != nil {
					if ctx.Err() == nil {
						troubles <- err
					}
					return
				}
				select {
				case messages <- m:
				case <-ctx.Done():
				}
			}
		}()
	}
	say(event{"ready": true})
	want := o.want()
	for {
		if more, err := want.more(); !more || err != nil {
			return err
		}
		select {
		case m := <-messages:
			k.show(m)
			want.one()
		case err := <-troubles:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// offset of a place: earliest, latest, or a time in ms; -1 where there is none.
func (k *kafkaGo) offset(topic string, partition int, at string) (int64, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	var asked kafka.OffsetRequest
	switch at {
	case "earliest":
		asked = kafka.FirstOffsetOf(partition)
	case "latest":
		asked = kafka.LastOffsetOf(partition)
	default:
		when := options{words: map[string]string{"t": at}}
		asked = kafka.TimeOffsetOf(partition, time.UnixMilli(int64(when.number("t", 0))))
	}
	answer, err := k.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {asked}},
	})
	if err != nil {
		return -1, err
	}
	for _, found := range answer.Topics[topic] {
		if found.Partition != partition {
			continue
		}
		switch {
		case found.Error != nil:
			return -1, found.Error
		case at == "earliest":
			return found.FirstOffset, nil
		case at == "latest":
			return found.LastOffset, nil
		}
		for offset := range found.Offsets {
			return offset, nil
		}
	}
	return -1, nil
}

func (k *kafkaGo) offsets(o options) error {
	for _, at := range o.times() {
		for p := 0; p < o.partitions(); p++ {
			offset, err := k.offset(o.topic(), p, at)
			if err != nil {
				return err
			}
			say(event{"at": at, "partition": p, "offset": offset})
		}
	}
	return nil
}

// By generations, since a Reader of a group does not say what it is assigned.
func (k *kafkaGo) member(ctx context.Context, o options) error {
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: o.name(), Brokers: []string{k.address}, Topics: []string{o.topic()}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: 6 * time.Second, RebalanceTimeout: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	defer group.Close()
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	var lock sync.Mutex
	came, limit, once := 0, o.number("limit", 0), o.number("commit", 0)
	for ctx.Err() == nil {
		generation, err := group.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				say(event{"trouble": err.Error()})
				time.Sleep(100 * time.Millisecond)
			}
			continue
		}
		owned, over := assignment{}, make(chan struct{})
		for _, part := range generation.Assignments[o.topic()] {
			owned[part.ID] = true
		}
		owned.say()
		commit := func(next following) {
			if err := generation.CommitOffsets(map[string]map[int]int64{o.topic(): next}); err != nil {
				say(event{"refused": err.Error()})
			} else {
				next.committed()
			}
		}
		// Runs as long as the generation does, whatever is assigned.
		generation.Start(func(living context.Context) {
			<-living.Done()
			close(over)
		})
		for _, part := range generation.Assignments[o.topic()] {
			generation.Start(func(living context.Context) {
				living, done := context.WithCancel(living)
				defer done()
				defer context.AfterFunc(ctx, done)()
				reader := k.reader(o.topic(), part.ID)
				defer reader.Close()
				if err := reader.SetOffset(part.Offset); err != nil {
					say(event{"trouble": err.Error()})
					return
				}
				for {
					m, err := reader.ReadMessage(living)
					if err != nil {
						return
					}
					lock.Lock()
					if limit > 0 && came >= limit {
						lock.Unlock()
						return
					}
					came++
					k.show(m)
					if once == 0 || came == once {
						commit(following{m.Partition: m.Offset + 1})
					}
					last := limit > 0 && came >= limit
					lock.Unlock()
					if last {
						enough()
						return
					}
				}
			})
		}
		select {
		case <-over:
		case <-ctx.Done():
		}
		assignment{}.say()
	}
	return nil
}

func (k *kafkaGo) committed(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	parts := []int{}
	for p := 0; p < o.partitions(); p++ {
		parts = append(parts, p)
	}
	answer, err := k.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: o.name(), Topics: map[string][]int{o.topic(): parts},
	})
	if err != nil {
		return err
	}
	if answer.Error != nil {
		return answer.Error
	}
	found := map[int]int64{}
	for _, part := range answer.Topics[o.topic()] {
		if part.Error != nil {
			return part.Error
		}
		found[part.Partition] = part.CommittedOffset
	}
	for _, p := range parts {
		offset, there := found[p]
		if !there {
			offset = -1
		}
		say(event{"partition": p, "offset": offset})
	}
	return nil
}

func (k *kafkaGo) metadata(topics ...string) ([]kafka.Topic, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, err
	}
	return answer.Topics, nil
}

func (k *kafkaGo) topics() ([]string, error) {
	names := []string{}
	found, err := k.metadata()
	for _, topic := range found {
		names = append(names, topic.Name)
	}
	return names, err
}

func (k *kafkaGo) describe(o options) (int, error) {
	found, err := k.metadata(o.topic())
	for _, topic := range found {
		if topic.Name == o.topic() {
			return len(topic.Partitions), topic.Error
		}
	}
	return 0, err
}

func (k *kafkaGo) config(o options) (map[string]string, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: o.topic()}},
	})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, resource := range answer.Resources {
		if resource.Error != nil {
			return nil, resource.Error
		}
		for _, entry := range resource.ConfigEntries {
			out[entry.ConfigName] = entry.ConfigValue
		}
	}
	return out, nil
}

func (k *kafkaGo) alter(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	resource := kafka.IncrementalAlterConfigsRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: o.topic()}
	for name, value := range o.settings() {
		resource.Configs = append(resource.Configs, kafka.IncrementalAlterConfigsRequestConfig{
			Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet,
		})
	}
	answer, err := k.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{resource},
	})
	if err != nil {
		return err
	}
	for _, resource := range answer.Resources {
		if resource.Error != nil {
			return resource.Error
		}
	}
	return nil
}

func (k *kafkaGo) grow(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: o.topic(), Count: int32(o.partitions())}},
	})
	if err != nil {
		return err
	}
	return answer.Errors[o.topic()]
}

func (k *kafkaGo) deleteRecords(options) error { return errors.New("kafka-go has no DeleteRecords") }

func (k *kafkaGo) deleteTopic(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{o.topic()}})
	if err != nil {
		return err
	}
	return answer.Errors[o.topic()]
}

func (k *kafkaGo) groups() ([]string, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, group := range answer.Groups {
		names = append(names, group.GroupID)
	}
	return names, answer.Error
}

func (k *kafkaGo) group(o options) (string, int, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{o.name()}})
	if err != nil {
		return "", 0, err
	}
	for _, group := range answer.Groups {
		return group.GroupState, len(group.Members), group.Error
	}
	return "", 0, errors.New("no group was described")
}

func (k *kafkaGo) deleteOffsets(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{
		GroupID: o.name(), Topics: map[string][]int{o.topic(): {o.partition()}},
	})
	if err != nil {
		return err
	}
	for _, part := range answer.Topics[o.topic()] {
		if part.Error != nil {
			return part.Error
		}
	}
	return answer.Error
}

func (k *kafkaGo) deleteGroup(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answer, err := k.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{o.name()}})
	if err != nil {
		return err
	}
	return answer.Errors[o.name()]
}

func (k *kafkaGo) console(options) error { return errors.New("no console is built on kafka-go") }
