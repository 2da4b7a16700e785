//go:build netns

package enforce

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// enforcing is what an agent in a process of its own prints once it enforces policies.
const enforcing = "enforcing"

// taken and a number is what it prints once the barrier of the number is in force.
const taken = "taken "

func TestMain(m *testing.M) {
	if text, isAgent := os.LookupEnv(specEnv); isAgent {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (s Spec) encode(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(s)
	must(t, err)
	return string(text)
}

// serve is an agent until its input ends.
func serve(text string) error {
	var spec Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	a, err := Start(context.Background(), spec)
	if err != nil {
		return err
	}
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if a.Enforcing() && a.Problem() == "" {
				fmt.Fprintln(os.Stdout, enforcing)
				break
			}
		}
		for n := int64(1); ; {
			if a.UntilTaken(context.Background(), n) != nil { // policies are not enforced for now
				<-tick.C
				continue
			}
			fmt.Fprintln(os.Stdout, fmt.Sprint(taken, n))
			n++
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
