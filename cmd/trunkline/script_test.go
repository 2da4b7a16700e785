package main

import (
	"flag"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trunkline/trunkline/internal/control/report"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

var update = flag.Bool("update", false, "write golden files")

// A script runs trunkline in this process, so its paths are absolute.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"trunkline": func(ts *testscript.TestScript, neg bool, args []string) {
				if code := run(args, ts.Stdout(), ts.Stderr()); (code != 0) != neg {
					ts.Fatalf("trunkline %v: status %d", args, code)
				}
			},
			"tables": serveTables,
		},
	})
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
