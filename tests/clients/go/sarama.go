package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type saramas struct {
	address string
	client  sarama.Client
	admin   sarama.ClusterAdmin
}

func newSarama(address string) (backend, error) {
	client, err := sarama.NewClient([]string{address}, saramaConfig())
	if err != nil {
		return nil, err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, err
	}
	return &saramas{address, client, admin}, nil
}

func saramaConfig() *sarama.Config {
	c := sarama.NewConfig()
	c.ClientID = "camus-tests"
	c.Version = sarama.MaxVersion
	c.Metadata.Retry.Max, c.Metadata.Retry.Backoff = 50, 200*time.Millisecond
	c.Producer.Return.Successes, c.Producer.Return.Errors = true, true
	c.Producer.Retry.Max, c.Producer.Retry.Backoff = 100, 200*time.Millisecond
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.MaxMessageBytes = 1_040_000
	c.Consumer.Return.Errors = true
	c.Consumer.MaxWaitTime = 300 * time.Millisecond
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	return c
}

func (s *saramas) code(err error) int {
	var known sarama.KError
	if errors.As(err, &known) {
		return int(known)
	}
	var topic *sarama.TopicError
	if errors.As(err, &topic) {
		return int(topic.Err)
	}
	return -1
}

func (s *saramas) create(o options) error {
	detail := &sarama.TopicDetail{
		NumPartitions: int32(o.partitions()), ReplicationFactor: 1, ConfigEntries: map[string]*string{},
	}
	for name, value := range o.settings() {
		detail.ConfigEntries[name] = &value
	}
	return s.admin.CreateTopic(o.topic(), detail, false)
}

func (s *saramas) produce(o options) error {
	c := saramaConfig()
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	acks := map[string]sarama.RequiredAcks{"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll}
	c.Producer.Compression, c.Producer.RequiredAcks = codecs[o.text("codec", "none")], acks[o.text("acks", "all")]
	if o.flag("small") {
		c.Producer.Flush.MaxMessages = 10
	} else {
		c.Producer.Flush.Frequency = 5 * time.Millisecond
	}
	if o.flag("idempotent") {
		c.Producer.Idempotent, c.Net.MaxOpenRequests = true, 1
	}
	producer, err := sarama.NewAsyncProducer([]string{s.address}, c)
	if err != nil {
		return err
	}
	var answers sync.WaitGroup
	answers.Add(2)
	go func() {
		defer answers.Done()
		for m := range producer.Successes() {
			acknowledged(m.Metadata.(int), int(m.Partition), m.Offset)
		}
	}()
	go func() {
		defer answers.Done()
		for e := range producer.Errors() {
			failed(e.Msg.Metadata.(int), e.Err)
		}
	}()
	for _, r := range o.records() {
		m := &sarama.ProducerMessage{Topic: o.topic(), Partition: int32(r.partition), Timestamp: r.when, Metadata: r.number}
		if r.key != nil {
			m.Key = sarama.ByteEncoder(r.key)
		}
		if r.value != nil {
			m.Value = sarama.ByteEncoder(r.value)
		}
		for _, h := range r.headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.name), Value: h.value})
		}
		producer.Input() <- m
		o.pause()
	}
	producer.AsyncClose()
	answers.Wait()
	return nil
}

func (s *saramas) show(m *sarama.ConsumerMessage) {
	var headers []header
	for _, h := range m.Headers {
		headers = append(headers, header{string(h.Key), h.Value})
	}
	show(int(m.Partition), m.Offset, m.Key, m.Value, headers, m.Timestamp)
}

// offset of a place: earliest, latest, or a time in ms.
func (s *saramas) offset(topic string, partition int32, at string) (int64, error) {
	switch at {
	case "earliest":
		return s.client.GetOffset(topic, partition, sarama.OffsetOldest)
	case "latest":
		return s.client.GetOffset(topic, partition, sarama.OffsetNewest)
	}
	time := options{words: map[string]string{"t": at}}
	return s.client.GetOffset(topic, partition, int64(time.number("t", 0)))
}

func (s *saramas) consume(o options) error {
	consumer, err := sarama.NewConsumer([]string{s.address}, saramaConfig())
	if err != nil {
		return err
	}
	defer consumer.Close()
	messages, troubles := make(chan *sarama.ConsumerMessage), make(chan error, 16)
	done := make(chan struct{})
	defer close(done)
	start := o.text("start", "earliest")
	for p := int32(0); p < int32(o.partitions()); p++ {
		offset := sarama.OffsetOldest
		switch {
		case start == "earliest":
		case start == "latest":
			offset, err = s.offset(o.topic(), p, "latest")
		case start[0] == '@':
			offset, err = s.offset(o.topic(), p, start[1:])
		default:
			offset = int64(o.number("start", 0))
		}
		if err != nil {
			return err
		}
		part, err := consumer.ConsumePartition(o.topic(), p, offset)
		if err != nil {
			return err
		}
		defer part.AsyncClose()
		go func() {
			for {
				select {
				case m, open := <-part.Messages():
					if !open {
						return
					}
					select {
					case messages <- m:
					case <-done:
						return
					}
				case e, open := <-part.Errors():
					if open {
						select {
						case troubles <- e.Err:
						default:
						}
					}
				case <-done:
					return
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
			s.show(m)
			want.one()
		case err := <-troubles:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *saramas) offsets(o options) error {
	for _, at := range o.times() {
		for p := 0; p < o.partitions(); p++ {
			offset, err := s.offset(o.topic(), int32(p), at)
			if err != nil {
				return err
			}
			say(event{"at": at, "partition": p, "offset": offset})
		}
	}
	return nil
}

// A saramaMember is the handler of one group session after the other. Claims are read side by side.
type saramaMember struct {
	s           *saramas
	topic       string
	limit, once int
	lock        sync.Mutex
	came        int
	enough      context.CancelFunc
}

func (m *saramaMember) Setup(session sarama.ConsumerGroupSession) error {
	owned := assignment{}
	for _, p := range session.Claims()[m.topic] {
		owned[int(p)] = true
	}
	owned.say()
	return nil
}

func (m *saramaMember) Cleanup(sarama.ConsumerGroupSession) error {
	assignment{}.say()
	return nil
}

func (m *saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	pending := false
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				if pending {
					session.Commit()
				}
				return nil
			}
			if m.handle(session, message) {
				return nil
			}
			pending = m.once == 0
		case <-tick.C:
			// Commit says nothing of its success; so nothing is said of it here.
			if pending {
				session.Commit()
				pending = false
			}
		case <-session.Context().Done():
			if pending {
				session.Commit()
			}
			return nil
		}
	}
}

// handle says whether it was the last one.
func (m *saramaMember) handle(session sarama.ConsumerGroupSession, message *sarama.ConsumerMessage) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.limit > 0 && m.came >= m.limit {
		return true
	}
	m.came++
	m.s.show(message)
	last := m.limit > 0 && m.came >= m.limit
	if m.once == 0 || m.came == m.once {
		session.MarkOffset(message.Topic, message.Partition, message.Offset+1, "")
	}
	if m.came == m.once || (m.once == 0 && last) {
		session.Commit()
		following{int(message.Partition): message.Offset + 1}.committed()
	}
	if last {
		m.enough()
	}
	return last
}

func (s *saramas) member(ctx context.Context, o options) error {
	c := saramaConfig()
	c.Consumer.Group.Session.Timeout, c.Consumer.Group.Heartbeat.Interval = 6*time.Second, 500*time.Millisecond
	c.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	group, err := sarama.NewConsumerGroup([]string{s.address}, o.name(), c)
	if err != nil {
		return err
	}
	go func() {
		for e := range group.Errors() {
			say(event{"trouble": e.Error()})
		}
	}()
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	m := &saramaMember{s: s, topic: o.topic(), limit: o.number("limit", 0), once: o.number("commit", 0), enough: enough}
	for ctx.Err() == nil {
		if err := group.Consume(ctx, []string{o.topic()}, m); err != nil && ctx.Err() == nil {
			say(event{"trouble": err.Error()})
			time.Sleep(100 * time.Millisecond)
		}
	}
	return group.Close()
}

func (s *saramas) committed(o options) error {
	spots := map[string][]int32{o.topic(): nil}
	for p := 0; p < o.partitions(); p++ {
		spots[o.topic()] = append(spots[o.topic()], int32(p))
	}
	found, err := s.admin.ListConsumerGroupOffsets(o.name(), spots)
	if err != nil {
		return err
	}
	for p := 0; p < o.partitions(); p++ {
		offset := int64(-1)
		if block := found.GetBlock(o.topic(), int32(p)); block != nil {
			if block.Err != sarama.ErrNoError {
				return block.Err
			}
			offset = block.Offset
		}
		say(event{"partition": p, "offset": offset})
	}
	return nil
}

func (s *saramas) topics() ([]string, error) {
	found, err := s.admin.ListTopics()
	names := []string{}
	for name := range found {
		names = append(names, name)
	}
	return names, err
}

func (s *saramas) describe(o options) (int, error) {
	found, err := s.admin.DescribeTopics([]string{o.topic()})
	if err != nil {
		return 0, err
	}
	for _, topic := range found {
		if topic.Err != sarama.ErrNoError {
			return 0, topic.Err
		}
		return len(topic.Partitions), nil
	}
	return 0, errors.New("no topic was described")
}

func (s *saramas) config(o options) (map[string]string, error) {
	out := map[string]string{}
	found, err := s.admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: o.topic()})
	for _, entry := range found {
		out[entry.Name] = entry.Value
	}
	return out, err
}

func (s *saramas) alter(o options) error {
	entries := map[string]sarama.IncrementalAlterConfigsEntry{}
	for name, value := range o.settings() {
		entries[name] = sarama.IncrementalAlterConfigsEntry{
			Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value,
		}
	}
	return s.admin.IncrementalAlterConfig(sarama.TopicResource, o.topic(), entries, false)
}

func (s *saramas) grow(o options) error {
	return s.admin.CreatePartitions(o.topic(), int32(o.partitions()), nil, false)
}

func (s *saramas) deleteRecords(o options) error {
	return s.admin.DeleteRecords(o.topic(), map[int32]int64{int32(o.partition()): int64(o.number("before", 0))})
}

func (s *saramas) deleteTopic(o options) error { return s.admin.DeleteTopic(o.topic()) }

func (s *saramas) groups() ([]string, error) {
	found, err := s.admin.ListConsumerGroups()
	names := []string{}
	for name := range found {
		names = append(names, name)
	}
	return names, err
}

func (s *saramas) group(o options) (string, int, error) {
	found, err := s.admin.DescribeConsumerGroups([]string{o.name()})
	if err != nil {
		return "", 0, err
	}
	for _, group := range found {
		if group.Err != sarama.ErrNoError {
			return "", 0, group.Err
		}
		return group.State, len(group.Members), nil
	}
	return "", 0, errors.New("no group was described")
}

func (s *saramas) deleteOffsets(o options) error {
	return s.admin.DeleteConsumerGroupOffset(o.name(), o.topic(), int32(o.partition()))
}

func (s *saramas) deleteGroup(o options) error { return s.admin.DeleteConsumerGroup(o.name()) }

func (s *saramas) console(options) error { return errors.New("no console is built on sarama") }
