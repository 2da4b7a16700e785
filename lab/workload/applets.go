package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

func cat(_ context.Context, args []string, p Process) (bool, error) {
	if len(args) == 0 {
		_, err := io.Copy(p.Stdout, p.Stdin)
		return err == nil, err
	}
	var all error
	for _, path := range args {
		f, err := os.Open(path)
		if err == nil {
			_, err = io.Copy(p.Stdout, f)
			err = errors.Join(err, f.Close())
		}
		all = errors.Join(all, err)
	}
	return all == nil, all
}

func ls(_ context.Context, args []string, p Process) (bool, error) {
	long, hidden := false, false
	var paths []string
	for _, a := range args {
		if letters, ok := strings.CutPrefix(a, "-"); ok && letters != "" {
			long, hidden = long || strings.Contains(letters, "l"), hidden || strings.Contains(letters, "a")
			if strings.Trim(letters, "la1") != "" {
				return false, usagef("unknown option %q", a)
			}
			continue
		}
		paths = append(paths, a)
	}
	if len(paths) == 0 {
		paths = []string{"."}
	}
	var all error
	for _, path := range paths {
		all = errors.Join(all, listOne(p.Stdout, path, long, hidden))
	}
	return all == nil, all
}

func listOne(w io.Writer, path string, long, hidden bool) error {
	show := func(info os.FileInfo, name string) {
		if long {
			fmt.Fprintf(w, "%s %10d %s ", info.Mode(), info.Size(), info.ModTime().UTC().Format("2006-01-02 15:04"))
		}
		fmt.Fprintln(w, name)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		show(info, path)
		return nil
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		if info, infoErr := e.Info(); infoErr == nil && (hidden || !strings.HasPrefix(e.Name(), ".")) {
			show(info, e.Name())
		}
	}
	return err
}

// sleep accepts seconds or a duration (1.5, 2m), or infinity.
func sleep(ctx context.Context, args []string, _ Process) (bool, error) {
	if len(args) != 1 {
		return false, usagef("sleep SECONDS|DURATION|infinity")
	}
	if args[0] == "infinity" {
		<-ctx.Done()
		return true, nil
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		seconds, numErr := strconv.ParseFloat(args[0], 64)
		if numErr != nil || seconds < 0 {
			return false, usagef("%q is not a duration", args[0])
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, nil
	case <-timer.C:
		return true, nil
	}
}

func env(_ context.Context, args []string, p Process) (bool, error) {
	if len(args) > 0 {
		return false, usagef("env takes no arguments")
	}
	for _, kv := range p.Environ {
		fmt.Fprintln(p.Stdout, kv)
	}
	return true, nil
}

func hostname(_ context.Context, _ []string, p Process) (bool, error) {
	name, err := os.Hostname()
	if err == nil {
		fmt.Fprintln(p.Stdout, name)
	}
	return err == nil, err
}

// testApplet implements -d, -e and -f PATH, and -n and -z TEXT.
func testApplet(_ context.Context, args []string, _ Process) (bool, error) {
	if len(args) != 2 {
		return false, usagef("test -d|-e|-f PATH")
	}
	switch args[0] {
	case "-n":
		return args[1] != "", nil
	case "-z":
		return args[1] == "", nil
	}
	info, err := os.Stat(args[1])
	switch args[0] {
	case "-d":
		return err == nil && info.IsDir(), nil
	case "-f":
		return err == nil && info.Mode().IsRegular(), nil
	case "-e":
		return err == nil, nil
	}
	return false, usagef("unknown test %q", args[0])
}

func bracketApplet(ctx context.Context, args []string, p Process) (bool, error) {
	if len(args) == 0 || args[len(args)-1] != "]" {
		return false, usagef("missing ]")
	}
	return testApplet(ctx, args[:len(args)-1], p)
}
