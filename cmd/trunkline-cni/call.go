package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// Defaults of the configuration.
const (
	defaultSocket = "/run/trunkline/agent.sock"
	defaultSpool  = "/var/lib/trunkline/spool"
	// defaultAddWait is longer than an agent's upgrade takes.
	defaultAddWait = 90 * time.Second
	defaultDelWait = 2 * time.Second
	// statusWait rides over an agent that is being replaced: a runtime that hears no
	// has the whole node not ready. Kubelets ask every 5 s and take a runtime for
	// dead that has not answered for 30.
	statusWait = 15 * time.Second
	// statusAtBoot is for a node whose agent may need the kubelet to be there first.
	statusAtBoot = time.Second
	// maxWait bounds what a configuration may ask for.
	maxWait = 10 * time.Minute
)

// supported are the CNI versions of configurations this plugin takes, oldest
// first.
func supported() []string { return []string{"0.4.0", "1.0.0", "1.1.0"} }

// conf is the part of the network configuration that the plugin itself reads;
// the agent gets the whole.
type conf struct {
	CNIVersion     string   `json:"cniVersion"`
	Name           string   `json:"name"`
	Socket         string   `json:"socket"`
	Spool          string   `json:"spool"`
	AddWaitSeconds *float64 `json:"addWaitSeconds"`
	DelWaitSeconds *float64 `json:"delWaitSeconds"`

	addWait, delWait time.Duration
}

// call is one invocation, checked.
type call struct {
	conf    conf
	request cnirpc.Request
}

// needs tells which variables a command cannot do without (CNI specification,
// "Parameters").
func needs(command string) []string {
	switch command {
	case "ADD", "CHECK":
		return []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}
	case "DEL":
		return []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}
	default:
		return []string{"CNI_PATH"}
	}
}

// firstVersion is the oldest CNI version that knows a command.
func firstVersion(command string) string {
	if command == "GC" || command == "STATUS" {
		return "1.1.0"
	}
	return "0.4.0"
}

// parse checks the environment and the configuration of one invocation.
func parse(env func(string) string, stdin io.Reader) (call, *cnirpc.Error) {
	command := env("CNI_COMMAND")
	switch command {
	case "ADD", "DEL", "CHECK", "STATUS", "GC":
	default:
		return call{}, refuse(cnirpc.CodeInvalidEnv, "unknown CNI_COMMAND", fmt.Sprintf("%q; known are ADD, DEL, CHECK, STATUS, GC and VERSION", command))
	}
	if err := checkEnv(command, env); err != nil {
		return call{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(stdin, maxConfig+1))
	if err != nil {
		return call{}, refuse(cnirpc.CodeIO, "read network configuration from stdin", err.Error())
	}
	c, confErr := parseConf(raw)
	if confErr != nil {
		return call{}, confErr
	}
	if slices.Index(supported(), c.CNIVersion) < slices.Index(supported(), firstVersion(command)) {
		return call{}, refuse(cnirpc.CodeIncompatible, "incompatible CNI versions",
			fmt.Sprintf("the configuration says cniVersion %q; %s needs one of %s", c.CNIVersion, command, strings.Join(supported()[slices.Index(supported(), firstVersion(command)):], ", ")))
	}
	return call{conf: c, request: cnirpc.Request{
		Plugin: version, Command: command,
		ContainerID: env("CNI_CONTAINERID"), IfName: env("CNI_IFNAME"),
		Netns: env("CNI_NETNS"), Args: env("CNI_ARGS"), Config: bytes.TrimSpace(raw),
	}}, nil
}

// maxConfig leaves room for the rest of the request in one message.
const maxConfig = cnirpc.MaxMessage - 64<<10

func checkEnv(command string, env func(string) string) *cnirpc.Error {
	var missing []string
	for _, name := range needs(command) {
		if env(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return refuse(cnirpc.CodeInvalidEnv, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "for "+command)
	}
	if len(needs(command)) == 1 {
		return nil
	}
	if err := checkContainerID(env("CNI_CONTAINERID")); err != nil {
		return err
	}
	return checkIfName(env("CNI_IFNAME"))
}

func parseConf(raw []byte) (conf, *cnirpc.Error) {
	if len(raw) > maxConfig {
		return conf{}, refuse(cnirpc.CodeInvalidConfig, "network configuration is too long", fmt.Sprintf("more than %d bytes on stdin", maxConfig))
	}
	var c conf
	if err := json.Unmarshal(raw, &c); err != nil {
		return conf{}, refuse(cnirpc.CodeDecode, "network configuration is not the JSON it should be", decoding(err))
	}
	if err := checkNetworkName(c.Name); err != nil {
		return conf{}, err
	}
	for _, path := range []struct{ key, value string }{{"socket", c.Socket}, {"spool", c.Spool}} {
		if path.value != "" && path.value[0] != '/' {
			return conf{}, refuse(cnirpc.CodeInvalidConfig, path.key+" is not an absolute path", fmt.Sprintf("%q", path.value))
		}
	}
	if c.Socket == "" {
		c.Socket = defaultSocket
	}
	if c.Spool == "" {
		c.Spool = defaultSpool
	}
	var err *cnirpc.Error
	if c.addWait, err = seconds("addWaitSeconds", c.AddWaitSeconds, defaultAddWait); err != nil {
		return conf{}, err
	}
	if c.delWait, err = seconds("delWaitSeconds", c.DelWaitSeconds, defaultDelWait); err != nil {
		return conf{}, err
	}
	return c, nil
}

// decoding says what is wrong with JSON in the words of who wrote it.
func decoding(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	want := "an object"
	if kind := wrong.Type.Kind(); kind == reflect.String {
		want = "text"
	} else if kind == reflect.Float64 {
		want = "a number that fits"
	}
	return fmt.Sprintf("%s: %s, must be %s", cmp.Or(wrong.Field, "the configuration"), wrong.Value, want)
}

func seconds(key string, value *float64, fallback time.Duration) (time.Duration, *cnirpc.Error) {
	if value == nil {
		return fallback, nil
	}
	if !(*value >= 0 && *value <= maxWait.Seconds()) {
		return 0, refuse(cnirpc.CodeInvalidConfig, key+" is out of range", fmt.Sprintf("%v, must be from 0 to %v", *value, maxWait.Seconds()))
	}
	return time.Duration(*value * float64(time.Second)), nil
}
