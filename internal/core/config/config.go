// Package config is the product's configuration as one value: what can be set,
// by which names, with which defaults, and what is wrong with a given set.
//
// It is pure: flags, environment and file come in as lookups, for only the
// programs in cmd may read them. Precedence is flag, environment, file, default.
// The names of AWS's environment variables are taken as aliases of ours from the
// one table in settings.go.
package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is everything an operator can choose. Load fills it; the zero value is
// not usable.
type Config struct {
	// Identity.
	ClusterName  string
	NodeName     string
	PodName      string // of the agent's or controller's own pod, for events and leases
	PodNamespace string
	LogLevel     string // debug, info, warn, error

	// Pool; see ipam.Config.
	WarmIPs      int
	Headroom     int
	WarmENIs     int
	MinIPs       int
	MaxENIs      int
	CoolDown     time.Duration
	IdleAfter    time.Duration
	ReleaseEvery time.Duration

	// Datapath.
	MTU              int // of ENIs, bytes
	PodMTU           int // of pods' links, bytes; 0: as MTU
	VethPrefix       string
	ExternalSNAT     bool
	ExcludeSNATCIDRs []netip.Prefix
	RandomizeSNAT    string // prng, hashrandom, none
	ExternalCIDRs    []netip.Prefix
	NodePort         bool
	PodMetadata      bool // pods may reach the instance metadata service

	// Node.
	StateDir   string
	Socket     string
	CNIBinDir  string
	CNIConfDir string
	CNIVersion string // of the conflist; auto: the highest the node's runtime takes
	AddWait    time.Duration
	DelWait    time.Duration

	// Endpoints.
	IntrospectionAddress string
	MetricsAddress       string

	origins map[string]string // setting → where its value comes from
}

// Sources are where values come from. Nil parts are empty.
type Sources struct {
	// Flags that were given, by setting name.
	Flags map[string]string
	// Env looks an environment variable up.
	Env func(name string) (string, bool)
	// File is a configuration file's keys and values, and FileName its name for
	// error texts.
	File     map[string]string
	FileName string
}

// Load returns the configuration that the sources make. The error names every
// setting that is wrong: which, from where, what it says and why it cannot be.
func Load(src Sources) (Config, error) {
	c := Config{origins: map[string]string{}}
	var problems []error
	for _, s := range settings() {
		value, origin := s.find(src)
		c.origins[s.Name] = origin
		if err := s.set(&c, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %q from %s: %w", s.Name, value, origin, err))
		}
	}
	problems = append(problems, unknown(src)...)
	problems = append(problems, refused(src)...)
	if len(problems) == 0 {
		c.followAWS()
		problems = c.together()
	}
	if len(problems) > 0 {
		return Config{}, errors.Join(problems...)
	}
	return c, nil
}

// Origin tells where a setting's value comes from, such as "WARM_IP_TARGET".
func (c Config) Origin(name string) string { return c.origins[name] }

// followAWS gives AWS's warm targets AWS's meaning: naming one of them switches
// our own defaults for the others off.
func (c *Config) followAWS() {
	if c.origins["warm-enis"] != fromDefault && c.origins["warm-ips"] == fromDefault {
		c.WarmIPs, c.Headroom = 0, 0
		c.origins["warm-ips"], c.origins["headroom"] = "warm-enis is set", "warm-enis is set"
	}
	if c.origins["warm-ips"] == "environment WARM_IP_TARGET" && c.origins["headroom"] == fromDefault {
		c.Headroom = 0
		c.origins["headroom"] = "WARM_IP_TARGET is set"
	}
}

// together checks what no setting can say alone.
func (c Config) together() (problems []error) {
	if c.PodMTU > c.MTU {
		problems = append(problems, fmt.Errorf("pod-mtu: %d from %s: more than the interfaces' mtu of %d", c.PodMTU, c.origins["pod-mtu"], c.MTU))
	}
	if c.IntrospectionAddress == c.MetricsAddress {
		problems = append(problems, fmt.Errorf("metrics-address: %q from %s: the same as introspection-address", c.MetricsAddress, c.origins["metrics-address"]))
	}
	return problems
}

// unknown names keys of the file and flags that no setting has.
func unknown(src Sources) (problems []error) {
	known := map[string]bool{}
	for _, s := range settings() {
		known[s.Name] = true
	}
	for _, key := range slices.Sorted(maps.Keys(src.File)) {
		if !known[key] {
			problems = append(problems, fmt.Errorf("%s: %q from file %s: there is no such setting%s", key, src.File[key], src.FileName, nearest(key, known)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(src.Flags)) {
		if !known[key] {
			problems = append(problems, fmt.Errorf("%s: %q from flag --%s: there is no such setting%s", key, src.Flags[key], key, nearest(key, known)))
		}
	}
	return problems
}

// nearest suggests the setting that shares the most words with key.
func nearest(key string, known map[string]bool) (suggestion string) {
	words, most := strings.FieldsFunc(strings.ToLower(key), func(r rune) bool { return r == '-' || r == '_' }), 0
	for _, name := range slices.Sorted(maps.Keys(known)) {
		shared := 0
		for _, word := range words {
			if len(word) > 2 && strings.Contains(name, word) {
				shared++
			}
		}
		if shared > most {
			most, suggestion = shared, fmt.Sprintf("; is %s meant?", name)
		}
	}
	return suggestion
}

// refused names AWS's switches for what this version cannot do: ignoring them
// would surprise later than refusing them.
func refused(src Sources) (problems []error) {
	if src.Env == nil {
		return nil
	}
	for _, u := range unsupported() {
		v, ok := src.Env(u.env)
		if !ok || v == "" {
			continue
		}
		switch asked, err := strconv.ParseBool(v); { // as AWS reads them
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %q from environment: neither true nor false", u.env, v))
		case asked == (u.refuse == "true"):
			problems = append(problems, fmt.Errorf("%s: %q from environment: %s is not supported in this version; unset it", u.env, v, u.what))
		}
	}
	return problems
}
