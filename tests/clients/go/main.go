// Go's clients of Kafka, as tests/clients asks for them: README.md there has the verbs and what they say.
//
//	client franz-go|sarama|kafka-go HOST:PORT VERB name=value ... [then VERB ...]
//
// This file is what the three share: the arguments, the rule that makes records, and how they say what came.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A backend does verbs with one library. What a library lacks is not asked of it (clients.py).
type backend interface {
	create(o options) error
	produce(o options) error
	consume(o options) error
	offsets(o options) error
	// member ends when its context does, and leaves the group.
	member(ctx context.Context, o options) error
	committed(o options) error
	topics() ([]string, error)
	describe(o options) (partitions int, err error)
	config(o options) (map[string]string, error)
	alter(o options) error
	grow(o options) error
	deleteRecords(o options) error
	deleteTopic(o options) error
	groups() ([]string, error)
	group(o options) (state string, members int, err error)
	deleteOffsets(o options) error
	deleteGroup(o options) error
	console(o options) error
	// code is Kafka's code in an error, or -1.
	code(err error) int
}

type event map[string]any

var (
	lock     sync.Mutex
	backends = map[string]func(address string) (backend, error){
		"franz-go": newFranz, "sarama": newSarama, "kafka-go": newKafkaGo,
	}
)

func say(e event) {
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	lock.Lock()
	defer lock.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func main() {
	make, address, rest := backends[os.Args[1]], os.Args[2], os.Args[3:]
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	b, err := make(address)
	if err != nil {
		say(event{"error": err.Error(), "verb": "connect"})
		os.Exit(1)
	}
	for len(rest) > 0 {
		cut := slices.Index(rest, "then")
		if cut < 0 {
			cut = len(rest)
		}
		o := parse(rest[0], rest[1:cut])
		rest = rest[min(cut+1, len(rest)):]
		if err := do(stopping, b, o); err != nil {
			say(event{"error": err.Error(), "code": b.code(err), "verb": o.verb})
			if o.text("may", "") != "fail" {
				os.Exit(1)
			}
		}
		say(event{"end": o.verb})
	}
}

func do(stopping context.Context, b backend, o options) error {
	switch o.verb {
	case "create":
		return b.create(o)
	case "produce":
		return b.produce(o)
	case "consume":
		return b.consume(o)
	case "offsets":
		return b.offsets(o)
	case "member":
		return b.member(stopping, o)
	case "committed":
		return b.committed(o)
	case "topics":
		found, err := b.topics()
		say(event{"topics": found})
		return err
	case "describe":
		partitions, err := b.describe(o)
		say(event{"partitions": partitions})
		return err
	case "config":
		found, err := b.config(o)
		for _, name := range strings.Split(o.text("names", ""), ",") {
			say(event{"name": name, "value": found[name]})
		}
		return err
	case "alter":
		return b.alter(o)
	case "grow":
		return b.grow(o)
	case "delete_records":
		return b.deleteRecords(o)
	case "delete":
		return b.deleteTopic(o)
	case "groups":
		found, err := b.groups()
		say(event{"groups": found})
		return err
	case "group":
		state, members, err := b.group(o)
		say(event{"state": state, "members": members})
		return err
	case "delete_offsets":
		return b.deleteOffsets(o)
	case "delete_group":
		return b.deleteGroup(o)
	case "console":
		return b.console(o)
	}
	return fmt.Errorf("no such verb: %s", o.verb)
}

// The arguments of one verb.
type options struct {
	verb  string
	words map[string]string
}

func parse(verb string, pairs []string) options {
	o := options{verb, map[string]string{}}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		o.words[name] = value
	}
	return o
}

func (o options) text(name, otherwise string) string {
	if value, there := o.words[name]; there {
		return value
	}
	return otherwise
}

func (o options) number(name string, otherwise int) int {
	value, err := strconv.Atoi(o.text(name, strconv.Itoa(otherwise)))
	if err != nil {
		panic(err)
	}
	return value
}

func (o options) flag(name string) bool { return o.text(name, "0") == "1" }
func (o options) topic() string         { return o.words["topic"] }
func (o options) name() string          { return o.words["group"] }
func (o options) partitions() int       { return o.number("partitions", 1) }
func (o options) partition() int        { return o.number("partition", 0) }
func (o options) times() []string       { return strings.Split(o.text("at", "latest"), ",") }

// settings is `set=a:b,c:d`.
func (o options) settings() map[string]string {
	out := map[string]string{}
	for _, pair := range strings.Split(o.text("set", ""), ",") {
		if name, value, is := strings.Cut(pair, ":"); is {
			out[name] = value
		}
	}
	return out
}

type header struct {
	name  string
	value []byte
}

type record struct {
	number     int
	partition  int
	key, value []byte
	headers    []header
	when       time.Time
}

// records makes those to send, by the rule of README.md.
func (o options) records() []record {
	first, size, mixed := o.number("from", 0), o.number("size", 0), o.text("shape", "plain") == "mixed"
	var out []record
	for i := first; i < first+o.number("count", 0); i++ {
		digits := strconv.Itoa(i)
		r := record{number: i, partition: i % o.partitions()}
		if !mixed || i%5 != 3 {
			r.value = []byte(digits + strings.Repeat(".", max(0, size-len(digits))))
		}
		if mixed && i%5 != 0 {
			r.key = []byte("key-" + digits)
		}
		if mixed && i%2 == 1 {
			r.headers = []header{{"n", []byte(digits)}, {"mark", []byte("ü")}}
		}
		if o.text("time", "") != "" {
			r.when = time.UnixMilli(int64(o.number("time", 0) + 1000*i))
		}
		out = append(out, r)
	}
	return out
}

func (o options) pause() { time.Sleep(time.Duration(o.number("pace", 0)) * time.Millisecond) }

func acknowledged(number, partition int, offset int64) {
	say(event{"record": number, "partition": partition, "offset": offset})
}

func failed(number int, err error) { say(event{"record": number, "failed": err.Error()}) }

func show(partition int, offset int64, key, value []byte, headers []header, when time.Time) {
	e := event{"partition": partition, "offset": offset, "key": nil, "value": nil, "size": nil, "crc": nil}
	if key != nil {
		e["key"] = string(key)
	}
	if value != nil {
		e["value"], e["size"], e["crc"] = string(value[:min(64, len(value))]), len(value), crc32.ChecksumIEEE(value)
	}
	shown := map[string]string{}
	for _, h := range headers {
		shown[h.name] = string(h.value)
	}
	e["headers"], e["time"] = shown, when.UnixMilli()
	say(e)
}

// A want is what a reader waits for: as many records, some time more, and no longer than its seconds.
type want struct {
	count, came     int
	quiet           time.Duration
	since, deadline time.Time
}

func (o options) want() *want {
	now := time.Now()
	quiet := time.Duration(o.number("quiet", 0)) * time.Millisecond
	return &want{o.number("count", 0), 0, quiet, now, now.Add(time.Duration(o.number("seconds", 30)) * time.Second)}
}

func (w *want) one() { w.came, w.since = w.came+1, time.Now() }

func (w *want) more() (bool, error) {
	if time.Now().After(w.deadline) {
		return false, fmt.Errorf("%d of %d records came in time", w.came, w.count)
	}
	return w.came < w.count || time.Since(w.since) < w.quiet, nil
}

// following is what a member commits: partition to the next offset to read.
type following map[int]int64

func (f following) committed() {
	shown := map[string]int64{}
	for partition, offset := range f {
		shown[strconv.Itoa(partition)] = offset
	}
	say(event{"committed": shown})
}

// An assignment is what a member owns; it says so at each change.
type assignment map[int]bool

func (a assignment) say() {
	owned := []int{}
	for partition := range a {
		owned = append(owned, partition)
	}
	slices.Sort(owned)
	say(event{"assigned": owned})
}

// ask puts one question of a console's.
func ask(call string, question func() (int, error)) {
	found, err := question()
	if err != nil {
		say(event{"call": call, "error": err.Error()})
		return
	}
	say(event{"call": call, "found": found})
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
