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

	"github.com/trunkline/trunkline/internal/core/config/defaults"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// Defaults and limits of the configuration.
const (
	defaultSocket  = defaults.Socket
	defaultSpool   = defaults.SpoolDir
	defaultAddWait = defaults.AddWait
	defaultDelWait = defaults.DelWait
	// statusWait outlasts the restart of an agent: after a STATUS error the runtime
	// reports the whole node not ready. The kubelet polls the runtime every 5 s and
	// considers it dead after 30 s without an answer.
	statusWait = 15 * time.Second
	// statusAtBoot is short: the agent of a booting node may be a pod that the kubelet
	// starts only after the runtime has answered.
	statusAtBoot = time.Second
	// maxWait bounds addWaitSeconds and delWaitSeconds.
	maxWait = 10 * time.Minute
)

// supported lists the CNI versions this plugin accepts in a configuration, oldest first.
func supported() []string { return []string{"0.4.0", "1.0.0", "1.1.0"} }

// conf is the part of the network configuration that the plugin reads; the agent gets
// the whole configuration.
type conf struct {
	CNIVersion, Name string
	Socket, Spool    string
	addWait, delWait time.Duration
}

// call is one validated call of the plugin.
type call struct {
	conf    conf
	request cnirpc.Request
}

// requiredEnv lists the variables that a command requires. Source: CNI specification,
// "Parameters".
func requiredEnv(command string) []string {
	switch command {
	case "ADD", "CHECK":
		return []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}
	case "DEL":
		return []string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}
	default:
		return []string{"CNI_PATH"}
	}
}

// commandVersions lists the supported CNI versions that have a command.
func commandVersions(command string) []string {
	if command == "GC" || command == "STATUS" {
		return []string{"1.1.0"}
	}
	return supported()
}

// parse reads and validates the environment and the configuration of one call.
func parse(env func(string) string, stdin io.Reader) (call, *cnirpc.Error) {
	command := env("CNI_COMMAND")
	switch command {
	case "ADD", "DEL", "CHECK", "STATUS", "GC":
	default:
		return call{}, refuse(cnirpc.CodeInvalidEnv, "unknown CNI_COMMAND", fmt.Sprintf("%q; must be ADD, DEL, CHECK, STATUS, GC or VERSION", command))
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
	if versions := commandVersions(command); !slices.Contains(versions, c.CNIVersion) {
		return call{}, refuse(cnirpc.CodeIncompatible, "incompatible CNI versions",
			fmt.Sprintf("cniVersion %q of the configuration: %s needs one of %s", c.CNIVersion, command, strings.Join(versions, ", ")))
	}
	return call{conf: c, request: cnirpc.Request{
		Plugin: version, Command: command,
		ContainerID: env("CNI_CONTAINERID"), IfName: env("CNI_IFNAME"),
		Netns: env("CNI_NETNS"), Args: env("CNI_ARGS"), Config: bytes.TrimSpace(raw),
	}}, nil
}

// maxConfig leaves 64 KiB of a message to the rest of the request.
const maxConfig = cnirpc.MaxMessage - 64<<10

func checkEnv(command string, env func(string) string) *cnirpc.Error {
	var missing []string
	for _, name := range requiredEnv(command) {
		if env(name) == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return refuse(cnirpc.CodeInvalidEnv, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "for "+command)
	}
	if command == "STATUS" || command == "GC" {
		return nil // they concern no container
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
	var addWait, delWait *float64
	err := cnirpc.DecodeKeys(raw,
		cnirpc.Key{Name: "cniVersion", Into: &c.CNIVersion}, cnirpc.Key{Name: "name", Into: &c.Name},
		cnirpc.Key{Name: "socket", Into: &c.Socket}, cnirpc.Key{Name: "spool", Into: &c.Spool},
		cnirpc.Key{Name: "addWaitSeconds", Into: &addWait}, cnirpc.Key{Name: "delWaitSeconds", Into: &delWait})
	if err != nil {
		return conf{}, refuse(cnirpc.CodeDecode, "decode network configuration as JSON", describe(err))
	}
	if err := checkNetworkName(c.Name); err != nil {
		return conf{}, err
	}
	for _, path := range []struct{ key, value string }{{"socket", c.Socket}, {"spool", c.Spool}} {
		if path.value != "" && path.value[0] != '/' {
			return conf{}, refuse(cnirpc.CodeInvalidConfig, path.key+" must be an absolute path", fmt.Sprintf("%q", path.value))
		}
	}
	if c.Socket == "" {
		c.Socket = defaultSocket
	}
	if c.Spool == "" {
		c.Spool = defaultSpool
	}
	var refused *cnirpc.Error
	if c.addWait, refused = seconds("addWaitSeconds", addWait, defaultAddWait); refused != nil {
		return conf{}, refused
	}
	if c.delWait, refused = seconds("delWaitSeconds", delWait, defaultDelWait); refused != nil {
		return conf{}, refused
	}
	return c, nil
}

// describe names JSON types instead of Go's, and the key that has the wrong one.
func describe(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	var want string
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "a string"
	case reflect.Float64:
		want = "a number of at most 64 bits"
	default:
		want = "an object"
	}
	return fmt.Sprintf("%s: %s, must be %s", cmp.Or(wrong.Field, "the configuration"), wrong.Value, want)
}

func seconds(key string, value *float64, fallback time.Duration) (time.Duration, *cnirpc.Error) {
	if value == nil {
		return fallback, nil
	}
	if !(*value >= 0 && *value <= maxWait.Seconds()) {
		return 0, refuse(cnirpc.CodeInvalidConfig, key+" is out of range", fmt.Sprintf("%v: must be from 0 to %v", *value, maxWait.Seconds()))
	}
	return time.Duration(*value * float64(time.Second)), nil
}
