package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type franz struct {
	address string
	admin   *kadm.Client
}

func newFranz(address string) (backend, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &franz{address, kadm.NewClient(client)}, nil
}

func (f *franz) code(err error) int {
	var known *kerr.Error
	if errors.As(err, &known) {
		return int(known.Code)
	}
	return -1
}

func (f *franz) create(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	configs := map[string]*string{}
	for name, value := range o.settings() {
		configs[name] = &value
	}
	_, err := f.admin.CreateTopic(ctx, int32(o.partitions()), 1, configs, o.topic())
	return err
}

func (f *franz) produce(o options) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	opts := []kgo.Opt{
		// No RecordDeliveryTimeout: it counts from the record's timestamp, which is long ago here. Flush has a bound.
		kgo.SeedBrokers(f.address), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[o.text("codec", "none")]), kgo.RequiredAcks(acks[o.text("acks", "all")]),
	}
	if o.flag("small") {
		opts = append(opts, kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(1024))
	} else {
		opts = append(opts, kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchMaxBytes(1_040_000))
	}
	if !o.flag("idempotent") {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, r := range o.records() {
		k := &kgo.Record{Topic: o.topic(), Partition: int32(r.partition), Key: r.key, Value: r.value, Timestamp: r.when}
		for _, h := range r.headers {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
		}
		client.Produce(context.Background(), k, func(done *kgo.Record, err error) {
			if err != nil {
				failed(r.number, err)
			} else {
				acknowledged(r.number, int(done.Partition), done.Offset)
			}
		})
		o.pause()
	}
	ctx, cancel := within(70 * time.Second)
	defer cancel()
	return client.Flush(ctx)
}

func (f *franz) show(k *kgo.Record) {
	var headers []header
	for _, h := range k.Headers {
		headers = append(headers, header{h.Key, h.Value})
	}
	show(int(k.Partition), k.Offset, k.Key, k.Value, headers, k.Timestamp)
}

// poll gives what comes within a moment; no record is no error.
func (f *franz) poll(client *kgo.Client, most int) ([]*kgo.Record, error) {
	ctx, cancel := within(100 * time.Millisecond)
	defer cancel()
	fetches := client.PollRecords(ctx, most)
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.DeadlineExceeded) {
			return nil, e.Err
		}
	}
	return fetches.Records(), nil
}

func (f *franz) list(o options, at string) (kadm.ListedOffsets, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	var found kadm.ListedOffsets
	var err error
	switch at {
	case "earliest":
		found, err = f.admin.ListStartOffsets(ctx, o.topic())
	case "latest":
		found, err = f.admin.ListEndOffsets(ctx, o.topic())
	default:
		time := options{words: map[string]string{"t": at}}
		found, err = f.admin.ListOffsetsAfterMilli(ctx, int64(time.number("t", 0)), o.topic())
	}
	for _, parts := range found {
		for _, part := range parts {
			if err == nil {
				err = part.Err
			}
		}
	}
	return found, err
}

func (f *franz) consume(o options) error {
	spots := map[int32]kgo.Offset{}
	start := o.text("start", "earliest")
	for p := int32(0); p < int32(o.partitions()); p++ {
		switch {
		case start == "earliest":
			spots[p] = kgo.NewOffset().AtStart()
		case start == "latest":
			ends, err := f.list(o, "latest")
			if err != nil {
				return err
			}
			end, _ := ends.Lookup(o.topic(), p)
			spots[p] = kgo.NewOffset().At(end.Offset)
		case start[0] == '@':
			time := options{words: map[string]string{"t": start[1:]}}
			spots[p] = kgo.NewOffset().AfterMilli(int64(time.number("t", 0)))
		default:
			spots[p] = kgo.NewOffset().At(int64(o.number("start", 0)))
		}
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(f.address), kgo.FetchMaxWait(300*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.topic(): spots}))
	if err != nil {
		return err
	}
	defer client.Close()
	say(event{"ready": true})
	want := o.want()
	for {
		if more, err := want.more(); !more || err != nil {
			return err
		}
		records, err := f.poll(client, 500)
		if err != nil {
			return err
		}
		for _, k := range records {
			f.show(k)
			want.one()
		}
	}
}

func (f *franz) offsets(o options) error {
	for _, at := range o.times() {
		found, err := f.list(o, at)
		if err != nil {
			return err
		}
		for p := 0; p < o.partitions(); p++ {
			place, there := found.Lookup(o.topic(), int32(p))
			if !there {
				place.Offset = -1
			}
			say(event{"at": at, "partition": p, "offset": place.Offset})
		}
	}
	return nil
}

func (f *franz) member(ctx context.Context, o options) error {
	owned := assignment{}
	// Called by one goroutine at a time, and never while a poll's records are in hand (BlockRebalanceOnPoll).
	gained := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		for _, p := range parts[o.topic()] {
			owned[int(p)] = true
		}
		owned.say()
	}
	lost := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		for _, p := range parts[o.topic()] {
			delete(owned, int(p))
		}
		owned.say()
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(f.address), kgo.ConsumerGroup(o.name()), kgo.ConsumeTopics(o.topic()), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(300 * time.Millisecond), kgo.OnPartitionsAssigned(gained), kgo.OnPartitionsRevoked(lost),
		kgo.OnPartitionsLost(lost),
	}
	if o.text("protocol", "classic") == "classic" {
		opts = append(opts, kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond))
	} else {
		opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	next, came, limit, once := following{}, 0, o.number("limit", 0), o.number("commit", 0)
	for ctx.Err() == nil && (limit == 0 || came < limit) {
		records, err := f.poll(client, 25)
		if err != nil {
			say(event{"trouble": err.Error()})
		}
		for _, k := range records {
			if limit > 0 && came >= limit {
				break
			}
			came++
			f.show(k)
			next[int(k.Partition)] = k.Offset + 1
			if came == once {
				f.commit(client, o.topic(), next)
			}
		}
		if once == 0 && len(next) > 0 {
			f.commit(client, o.topic(), next)
		}
		client.AllowRebalance()
	}
	return nil
}

func (f *franz) commit(client *kgo.Client, topic string, next following) {
	ctx, cancel := within(15 * time.Second)
	defer cancel()
	offsets := map[int32]kgo.EpochOffset{}
	for p, offset := range next {
		offsets[int32(p)] = kgo.EpochOffset{Epoch: -1, Offset: offset}
	}
	var refused error
	client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			refused = err
			if err != nil {
				return
			}
			for _, t := range answer.Topics {
				for _, p := range t.Partitions {
					if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
						refused = err
					}
				}
			}
		})
	if refused != nil {
		say(event{"refused": refused.Error()})
	} else {
		next.committed()
	}
	clear(next)
}

func (f *franz) committed(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	found, err := f.admin.FetchOffsets(ctx, o.name())
	for p := 0; p < o.partitions() && err == nil; p++ {
		place, there := found.Lookup(o.topic(), int32(p))
		if !there {
			place.At = -1
		}
		say(event{"partition": p, "offset": place.At})
	}
	return err
}

func (f *franz) topics() ([]string, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	found, err := f.admin.ListTopics(ctx)
	return found.Names(), err
}

func (f *franz) describe(o options) (int, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	found, err := f.admin.ListTopics(ctx, o.topic())
	if err != nil {
		return 0, err
	}
	return len(found[o.topic()].Partitions), found[o.topic()].Err
}

func (f *franz) config(o options) (map[string]string, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	out := map[string]string{}
	found, err := f.admin.DescribeTopicConfigs(ctx, o.topic())
	for _, resource := range found {
		if err == nil {
			err = resource.Err
		}
		for _, c := range resource.Configs {
			out[c.Key] = c.MaybeValue()
		}
	}
	return out, err
}

func (f *franz) alter(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	var configs []kadm.AlterConfig
	for name, value := range o.settings() {
		configs = append(configs, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	answers, err := f.admin.AlterTopicConfigs(ctx, configs, o.topic())
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	return err
}

func (f *franz) grow(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answers, err := f.admin.UpdatePartitions(ctx, o.partitions(), o.topic())
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	return err
}

func (f *franz) deleteRecords(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	before := kadm.Offsets{}
	before.AddOffset(o.topic(), int32(o.partition()), int64(o.number("before", 0)), -1)
	answers, err := f.admin.DeleteRecords(ctx, before)
	for _, parts := range answers {
		for _, part := range parts {
			if err == nil {
				err = part.Err
			}
		}
	}
	return err
}

func (f *franz) deleteTopic(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answers, err := f.admin.DeleteTopics(ctx, o.topic())
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	return err
}

func (f *franz) groups() ([]string, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	found, err := f.admin.ListGroups(ctx)
	return found.Groups(), err
}

func (f *franz) group(o options) (string, int, error) {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	found, err := f.admin.DescribeGroups(ctx, o.name())
	group := found[o.name()]
	if err == nil {
		err = group.Err
	}
	return group.State, len(group.Members), err
}

func (f *franz) deleteOffsets(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	spots := kadm.TopicsSet{}
	spots.Add(o.topic(), int32(o.partition()))
	answers, err := f.admin.DeleteOffsets(ctx, o.name(), spots)
	if err == nil {
		err = answers.Error()
	}
	return err
}

func (f *franz) deleteGroup(o options) error {
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	answers, err := f.admin.DeleteGroups(ctx, o.name())
	for _, answer := range answers {
		if err == nil {
			err = answer.Err
		}
	}
	return err
}

// What Redpanda's console asks with this very client.
func (f *franz) console(o options) error {
	ctx, cancel := within(60 * time.Second)
	defer cancel()
	cluster, err := f.admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	ids := cluster.Brokers.NodeIDs()
	ask("cluster", func() (int, error) { return len(ids), nil })
	ask("topics", func() (int, error) { found, err := f.topics(); return len(found), err })
	ask("describe_topics", func() (int, error) { return f.describe(o) })
	ask("topic_configs", func() (int, error) { found, err := f.config(o); return len(found), err })
	ask("broker_configs", func() (int, error) {
		found, err := f.admin.DescribeBrokerConfigs(ctx, ids...)
		count := 0
		for _, broker := range found {
			count += len(broker.Configs)
		}
		return count, err
	})
	ask("end_offsets", func() (int, error) {
		found, err := f.list(o, "latest")
		return len(found[o.topic()]), err
	})
	ask("groups", func() (int, error) { found, err := f.groups(); return len(found), err })
	ask("group", func() (int, error) {
		_, _, err := f.group(o)
		return 1, err
	})
	ask("group_offsets", func() (int, error) {
		found, err := f.admin.FetchOffsets(ctx, o.name())
		return len(found[o.topic()]), err
	})
	ask("log_dirs", func() (int, error) {
		found, err := f.admin.DescribeAllLogDirs(ctx, nil)
		count := 0
		for _, dirs := range found {
			for _, dir := range dirs {
				count += len(dir.Topics[o.topic()])
			}
		}
		return count, err
	})
	return nil
}
