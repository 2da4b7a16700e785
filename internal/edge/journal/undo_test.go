package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

// A group was written and its sync failed. Who waits for the sync is refused; the records that
// count until the next boot only were complete without it.
func TestOnlyRecordsThatWaitForTheSyncAreUndone(t *testing.T) {
	put := func(key, value string) []Record {
		r := Record{Key: key}
		if value != "" {
			r.Value = json.RawMessage(value)
		}
		return []Record{r}
	}
	for name, c := range map[string]struct {
		group []*commit
		want  string
	}{
		"that wait":                      {[]*commit{{records: put("a", "2")}, {records: put("b", "2")}, {records: put("c", "")}}, "boot monday, map[a:1 c:1]"},
		"of which one counts for a boot": {[]*commit{{records: put("a", "2")}, {records: put("b", "2"), forBoot: true}}, "boot tuesday, map[a:1 b:2 c:1]"},
		"of which one drops for a boot":  {[]*commit{{records: put("b", "2")}, {records: put("c", ""), forBoot: true}}, "boot tuesday, map[a:1]"},
	} {
		l := &log{opts: Options{BootID: "tuesday"}, boot: "monday", live: map[string]json.RawMessage{}}
		apply(l.live, append(put("a", "1"), put("c", "1")...))
		var all []Record
		for _, g := range c.group {
			all = append(all, g.records...)
		}
		was := l.before(all)
		apply(l.live, all)
		l.boot = l.opts.BootID
		l.undo(was, c.group)
		text := map[string]string{}
		for key, value := range l.live {
			text[key] = string(value)
		}
		if got := fmt.Sprintf("boot %s, %v", l.boot, text); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestAPendingCommitHasNotEnded(t *testing.T) {
	refused := errors.New("refused")
	p := &Pending{done: make(chan struct{})}
	if ended, err := p.Ended(); ended || err != nil {
		t.Errorf("before its end: %v, %v", ended, err)
	}
	p.end(refused)
	if ended, err := p.Ended(); !ended || !errors.Is(err, refused) {
		t.Errorf("after its end: %v, %v", ended, err)
	}
}
