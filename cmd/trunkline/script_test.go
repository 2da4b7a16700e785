package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

var update = flag.Bool("update", false, "write golden files")

// A script runs trunkline in this process, so its paths are absolute.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			examples, err := filepath.Abs("../../examples")
			e.Setenv("EXAMPLES", examples)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"trunkline": func(ts *testscript.TestScript, neg bool, args []string) {
				if code := run(args, ts.Stdout(), ts.Stderr()); (code != 0) != neg {
					ts.Fatalf("trunkline %v: status %d", args, code)
				}
			},
			"tables": serveTables,
			"server": func(ts *testscript.TestScript, _ bool, args []string) { serveAPI(t, ts, args) },
		},
	})
}

// serveAPI serves an API server with the objects of files, given as pairs of a resource's path
// and a file, and writes a kubeconfig for it to the file of the first argument.
func serveAPI(t *testing.T, ts *testscript.TestScript, args []string) {
	s := kubetest.New(t)
	for i := 1; i+1 < len(args); i += 2 {
		var object map[string]any
		ts.Check(yaml.Unmarshal([]byte(ts.ReadFile(args[i+1])), &object))
		s.Put(args[i], object)
	}
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}`, s.REST().Host)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// pet is a row of the tables that the scripts read.
type pet struct{ name, kind string }

// serveTables serves two small tables on a socket, as an agent serves its own.
func serveTables(ts *testscript.TestScript, _ bool, args []string) {
	db := table.New()
	for _, name := range []string{"pets", "owners"} {
		pets, err := table.Register(db, table.Schema[pet]{
			Name: name, Primary: table.By("name", func(p pet) string { return p.name }, table.String[string]),
			Columns: []string{"NAME", "KIND"}, Cells: func(p pet) []string { return []string{p.name, p.kind} },
		})
		ts.Check(err)
		ts.Check(db.Update(func(txn *table.Txn) error {
			for _, p := range []pet{{"ada", "cat"}, {"bert", ""}} {
				if _, err := pets.Insert(txn, p); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	socket := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(socket), 0o755))
	l, err := net.Listen("unix", socket)
	ts.Check(err)
	srv := &http.Server{Handler: report.Tables(db), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }() // ends by Close
	ts.Defer(func() { _ = srv.Close(); <-done })
}
