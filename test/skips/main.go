// Command skips prints the output of `go test -json`, read from stdin, as go test itself
// prints it, and lists at the end which tests were skipped and why: go test alone prints
// nothing of a skipped test, so that a package which checks nothing looks like one that
// passed.
//
// The targets of the Makefile pipe their tests through it. It decides nothing: the exit
// code is that of go test. With -v it prints the output of all tests, without it that of
// failed ones. With -to it also appends the list to a file: test/tiers prints those of all
// tiers as its last lines.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
)

func main() {
	verbose := flag.Bool("v", false, "print the output of passed tests too")
	to := flag.String("to", "", "append the list to this file too; none if empty")
	flag.Parse()
	signal.Ignore(os.Interrupt) // go test ends, and its last output is read
	if err := run(os.Stdin, os.Stdout, *verbose, *to); err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
}

// run copies the output and lists the skipped tests, also in the file unless it is empty.
func run(in io.Reader, out io.Writer, verbose bool, file string) error {
	p := printer{out: out, verbose: verbose, output: map[test][]string{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.line(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
	}
	p.unfinished("")
	if p.err != nil {
		return fmt.Errorf("print the output of go test: %w", p.err)
	}
	list := strings.Join(p.skipped, "")
	if len(p.skipped) > 0 {
		if _, err := fmt.Fprintf(out, "\nskipped tests: %d\n%s", len(p.skipped), list); err != nil {
			return fmt.Errorf("print the list: %w", err)
		}
	}
	if file == "" || list == "" {
		return nil
	}
	return appendTo(file, list)
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record the list: %w", err)
	}
	if _, err := f.WriteString(text); err != nil {
		return fmt.Errorf("record the list: %w", err)
	}
	return f.Close()
}
