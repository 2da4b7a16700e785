package policy

import (
	"fmt"
	"slices"
	"testing"
)

// intervals draws what one user names.
func (d draw) intervals() (list []interval) {
	for range d(4, "intervals") + 1 {
		i := interval{protocol: pick(d, []Protocol{TCP, UDP, SCTP}, "protocol"), first: pick(d, numbers, "first")}
		i.last = max(i.first, pick(d, numbers, "last"))
		list = append(list, i)
	}
	return list
}

func has(list []interval, p Protocol, port uint16) bool {
	return slices.ContainsFunc(list, func(i interval) bool { return i.protocol == p && i.first <= port && port <= i.last })
}

// classAt is the class of a port in the tables.
func classAt(p *ports, protocol Protocol, port uint16) PortClass {
	tables := NewTables()
	tables.Apply(p.puts(nil)...)
	return tables.portClass(Set{Ports: p.id, Ranges: p.ranges()}, protocol, port)
}

func TestPortsOfAClassAreNamedByTheSameUsers(t *testing.T) {
	for seed := range uint64(60) {
		d := bySeed(seed)
		var users [][]interval
		for range d(6, "users") {
			users = append(users, d.intervals())
		}
		p := dividePorts(users)
		p.id = 7
		classes := map[string]PortClass{}
		names := map[PortClass]string{}
		for _, protocol := range []Protocol{TCP, UDP, SCTP} {
			for _, port := range append([]uint16{2, 55, 3000, 65533}, numbers...) {
				class, by := classAt(p, protocol, port), ""
				for n, list := range users {
					named := has(list, protocol, port)
					if named {
						by += fmt.Sprint(n, ",")
					}
					if bit := p.mask(list)[class/pageBits] >> (class % pageBits) & 1; (bit == 1) != named {
						t.Fatalf("seed %d: %s %d is of class %d, which user %d names: %v", seed, protocol, port, class, n, bit)
					}
				}
				if other, known := classes[by]; known && other != class || !known && names[class] != "" {
					t.Fatalf("seed %d: %s %d, which users %q name, is of class %d; another port of them of class %d", seed, protocol, port, by, class, other)
				}
				if classes[by], names[class] = class, by+"."; (class == 0) != (by == "") {
					t.Fatalf("seed %d: %s %d, which users %q name, is of class %d", seed, protocol, port, by, class)
				}
			}
		}
		tables := NewTables()
		tables.Apply(p.puts(nil)...)
		if tables.Apply(p.deletes(nil)...); tables.Len() != 0 || len(p.puts(nil)) != len(p.deletes(nil)) {
			t.Fatalf("seed %d: %s is left", seed, tables)
		}
	}
}

func TestPortsAreWrittenAsTheFewestRanges(t *testing.T) {
	for name, c := range map[string]struct {
		interval interval
		want     []string
	}{
		"one":                 {interval{TCP, 80, 80}, []string{"TCP 80"}},
		"the first":           {interval{TCP, 0, 0}, []string{"TCP 0"}},
		"the last":            {interval{TCP, 65535, 65535}, []string{"TCP 65535"}},
		"all":                 {interval{UDP, 0, 65535}, []string{"UDP 0/0"}},
		"two":                 {interval{TCP, 80, 81}, []string{"TCP 80/15"}},
		"two across a border": {interval{TCP, 79, 80}, []string{"TCP 79/16", "TCP 80/16"}},
		"all but the first":   {interval{TCP, 32767, 65535}, []string{"TCP 32767/16", "TCP 32768/1"}},
		"all but the last":    {interval{TCP, 0, 32768}, []string{"TCP 0/1", "TCP 32768/16"}},
		"an odd range":        {interval{SCTP, 5, 13}, []string{"SCTP 5/16", "SCTP 6/15", "SCTP 8/14", "SCTP 12/15"}},
	} {
		p := dividePorts([][]interval{{c.interval}})
		p.id = 3
		var got []string
		for _, o := range p.puts(nil) {
			switch put := o.(type) {
			case Put[PortKey, PortClass]:
				got = append(got, fmt.Sprintf("%s %d", put.Key.Protocol, put.Key.Port))
				if put.Key.Ports != 3 || put.Value != 1 {
					t.Errorf("%s: %s", name, o)
				}
			case Put[PortRange, PortClass]:
				got = append(got, fmt.Sprintf("%s %d/%d", put.Key.Protocol, put.Key.Port, put.Key.Bits))
				if put.Key.Ports != 3 || put.Value != 1 {
					t.Errorf("%s: %s", name, o)
				}
			}
		}
		if !slices.Equal(got, c.want) || p.ranges() != (len(got) > 1 || c.interval.first != c.interval.last) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestClassesOfPortsAreNumberedInTheOrderOfThePorts(t *testing.T) {
	for name, c := range map[string]struct {
		users [][]interval
		want  string
	}{
		"nothing":                    {nil, "[] 1"},
		"two users":                  {[][]interval{{{TCP, 90, 99}}, {{TCP, 80, 80}}}, "[{{TCP 80 80} 1} {{TCP 90 99} 2}] 3"},
		"one of two ranges":          {[][]interval{{{TCP, 90, 99}, {TCP, 80, 80}}}, "[{{TCP 80 80} 1} {{TCP 90 99} 1}] 2"},
		"adjacent ranges":            {[][]interval{{{TCP, 80, 89}}, {{TCP, 90, 99}}}, "[{{TCP 80 89} 1} {{TCP 90 99} 2}] 3"},
		"nested ranges":              {[][]interval{{{TCP, 80, 99}}, {{TCP, 85, 89}}}, "[{{TCP 80 84} 1} {{TCP 85 89} 2} {{TCP 90 99} 1}] 3"},
		"overlapping ranges":         {[][]interval{{{TCP, 80, 89}}, {{TCP, 85, 99}}}, "[{{TCP 80 84} 1} {{TCP 85 89} 2} {{TCP 90 99} 3}] 4"},
		"of one user twice":          {[][]interval{{{TCP, 80, 89}, {TCP, 85, 99}}}, "[{{TCP 80 84} 1} {{TCP 85 89} 1} {{TCP 90 99} 1}] 2"},
		"the same of two users":      {[][]interval{{{TCP, 80, 89}}, {{TCP, 80, 89}}}, "[{{TCP 80 89} 1}] 2"},
		"of two protocols":           {[][]interval{{{UDP, 0, 65535}}, {{TCP, 65535, 65535}}}, "[{{TCP 65535 65535} 1} {{UDP 0 65535} 2}] 3"},
		"of one user, two protocols": {[][]interval{{{UDP, 53, 53}, {TCP, 53, 53}}}, "[{{TCP 53 53} 1} {{UDP 53 53} 1}] 2"},
	} {
		p := dividePorts(c.users)
		var parts []string
		for _, part := range p.parts {
			parts = append(parts, fmt.Sprintf("{{%s %d %d} %d}", part.protocol, part.first, part.last, part.class))
		}
		if got := fmt.Sprint(parts, " ", p.classes); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if p.words() != 1 || p.all()[0] != 1<<p.classes-1 {
			t.Errorf("%s: all are %b", name, p.all())
		}
	}
}

func TestDivisionsWithTheSameClassesHaveTheSameKey(t *testing.T) {
	a := dividePorts([][]interval{{{TCP, 80, 89}}, {{TCP, 90, 99}}})
	for name, c := range map[string]struct {
		users [][]interval
		same  bool
	}{
		"in another order": {[][]interval{{{TCP, 90, 99}}, {{TCP, 80, 89}}}, true},
		"of one user":      {[][]interval{{{TCP, 90, 99}, {TCP, 80, 89}}}, false},
		"another protocol": {[][]interval{{{UDP, 80, 89}}, {{UDP, 90, 99}}}, false},
		"another border":   {[][]interval{{{TCP, 80, 90}}, {{TCP, 91, 99}}}, false},
		"a shorter range":  {[][]interval{{{TCP, 81, 89}}, {{TCP, 90, 99}}}, false},
		"a longer range":   {[][]interval{{{TCP, 80, 89}}, {{TCP, 90, 100}}}, false},
		"one range less":   {[][]interval{{{TCP, 80, 89}}}, false},
	} {
		if got := dividePorts(c.users).key == a.key; got != c.same {
			t.Errorf("%s: the same key: %v", name, got)
		}
	}
}

// Many users fill pages of 64 classes; each class is in the mask of its users only.
func TestClassesOfManyUsersAreOfSeveralPages(t *testing.T) {
	for _, n := range []int{62, 63, 64, 127, 128, 200} {
		var users [][]interval
		for i := range n {
			users = append(users, []interval{{TCP, uint16(2 * i), uint16(2 * i)}})
		}
		p := dividePorts(users)
		if p.classes != n+1 || p.words() != n/pageBits+1 {
			t.Fatalf("%d users: %d classes, %d words", n, p.classes, p.words())
		}
		set := 0
		for class := range p.words() * pageBits {
			if p.all()[class/pageBits]>>(class%pageBits)&1 == 1 {
				set++
			}
		}
		if set != p.classes {
			t.Errorf("%d users: %d classes in the mask of all", n, set)
		}
		for i, list := range users {
			for at, word := range p.mask(list) {
				want := uint64(0)
				if at == (i+1)/pageBits {
					want = 1 << ((i + 1) % pageBits)
				}
				if word != want {
					t.Fatalf("%d users: word %d of user %d: %b", n, at, i, word)
				}
			}
		}
	}
}
