//go:build netns

package workload

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/test/testns"
)

// asApplet has the test's program run an applet: its goroutines are then all in one namespace.
const asApplet = "TRUNKLINE_TEST_APPLET"

func TestMain(m *testing.M) {
	if os.Getenv(asApplet) != "" {
		os.Exit(Run(context.Background(), append([]string{"workload"}, os.Args[1:]...), Process{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()}))
	}
	os.Exit(m.Run())
}

// An observer counts what a pod sends where nothing denies it, and the answers to its calls.
func TestAnObserverCountsWhatArrivesFromAPod(t *testing.T) {
	ns := testns.New(t, "observe")
	ns.Do(t, func() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	run := func(name string, args ...string) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = []string{"POD_NAME=" + name, asApplet + "=yes"}, t.Output(), t.Output()
		if err := ns.Run(cmd.Start); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	run("observer", "observe", "--call=127.0.0.1/32")
	run("pod-1", "attempt", "127.0.0.1")
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			return conn, ns.Run(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
		},
	}}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		seen := map[string]Observed{}
		if resp, err := client.Get("http://127.0.0.1:8080/"); err == nil {
			_ = json.NewDecoder(resp.Body).Decode(&seen)
			resp.Body.Close()
		}
		if s := seen["pod-1"]; s.Denied > 0 && s.Allowed > 0 && s.Called > 0 && s.First != "" && len(seen) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the observer has seen %+v", seen)
		}
	}
}

func TestObserveRefusesInvalidRanges(t *testing.T) {
	for _, text := range []string{"10.0.0.0", "10.0.0.0/8", "fd00::/120"} {
		if _, err := addressesOf(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	if list, err := addressesOf("10.0.0.0/30,10.0.1.1/32"); err != nil || len(list) != 5 {
		t.Errorf("%v, %v", list, err)
	}
}
