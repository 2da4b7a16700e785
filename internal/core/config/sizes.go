package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// mostEntries bounds the size of a kernel map: 64 Mi entries need some GiB.
const mostEntries = 1 << 26

// numbersByName is a setting such as tl_rows=524288,tl_classes=1000000.
func numbersByName[N int | uint32](name, doc string, field func(*Config) *map[string]N, parse func(string) (map[string]N, error)) Setting {
	return Setting{
		Name: name, Doc: doc,
		set: func(c *Config, v string) (err error) {
			*field(c), err = parse(v)
			return err
		},
		get: func(c Config) string {
			var out []string
			for _, key := range slices.Sorted(maps.Keys(*field(&c))) {
				out = append(out, fmt.Sprintf("%s=%d", key, (*field(&c))[key]))
			}
			return strings.Join(out, ",")
		},
	}
}

func parseSizes(v string) (map[string]uint32, error) {
	var all map[string]uint32
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, text, _ := strings.Cut(part, "=")
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		odd := func(r rune) bool { return (r < 'a' || r > 'z') && r != '_' }
		if name = strings.TrimSpace(name); name == "" || strings.ContainsFunc(name, odd) || err != nil || n == 0 || n > mostEntries {
			return nil, fmt.Errorf("%q: must be a map's name and a number of entries from 1 to %d, such as tl_rows=524288", part, mostEntries)
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		if all == nil {
			all = map[string]uint32{}
		}
		all[name] = uint32(n)
	}
	return all, nil
}
