package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// console is where a command writes: results to out, as text or as one JSON document, and
// messages to errs.
type console struct {
	out, errs io.Writer
	tty       bool // out is a terminal
	// json: the output is one JSON document; written: it has been written.
	json, written bool
}

// writeJSON writes the JSON document of a command with -o json.
func (c *console) writeJSON(v any) error {
	c.written = true
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// fail prints an error, in text and, with -o json, as the document if none was written.
func (c *console) fail(err error, interrupted bool) {
	if interrupted {
		fmt.Fprintln(c.errs, "interrupted")
	} else {
		fmt.Fprintln(c.errs, "trunkline-lab:", err)
	}
	if c.json && !c.written {
		_ = c.writeJSON(map[string]string{"error": err.Error()}) // errs has it too
	}
}

// board returns the progress display. With -o json it is on errs.
func (c *console) board() *board {
	if c.json {
		return newBoard(c.errs, false, time.Now)
	}
	return newBoard(c.out, c.tty, time.Now)
}
