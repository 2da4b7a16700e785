package main

import (
	"time"
	"unsafe"
)

// earlyEnv is a plain call's environment: an ADD or a DEL of which every word is such as
// JSON has it unchanged. The words are parts of the process's stack.
type earlyEnv struct {
	command, containerID, netns, ifName, path, args string
}

// environmentAt reads the environment that the kernel left at stack: argc, argv, a
// nil, the environment, a nil. A program with arguments is not called by a runtime.
func environmentAt(stack unsafe.Pointer) (c earlyEnv, ok bool) {
	if *(*int)(stack) != 1 {
		return c, false
	}
	const word = unsafe.Sizeof(stack)
	for at := unsafe.Add(stack, 3*word); ; at = unsafe.Add(at, word) {
		variable := *(**byte)(at)
		if variable == nil {
			return c, c.plain()
		}
		c.take(variable)
	}
}

// take keeps the variable that begins at p if it is one of ours and the first of its
// name, as os.Getenv has it.
func (c *earlyEnv) take(p *byte) {
	text := unsafe.String(p, length(p))
	for i := 0; i < len(text); i++ {
		if text[i] == '=' {
			if slot := c.named(text[:i]); slot != nil && unsafe.StringData(*slot) == nil {
				*slot = text[i+1:]
			}
			return
		}
	}
}

func (c *earlyEnv) named(name string) *string {
	switch name {
	case "CNI_COMMAND":
		return &c.command
	case "CNI_CONTAINERID":
		return &c.containerID
	case "CNI_NETNS":
		return &c.netns
	case "CNI_IFNAME":
		return &c.ifName
	case "CNI_PATH":
		return &c.path
	case "CNI_ARGS":
		return &c.args
	}
	return nil
}

// length is strlen.
func length(p *byte) (n int) {
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return n
}

func (c *earlyEnv) plain() bool {
	return (c.command == "ADD" || c.command == "DEL") &&
		isName(c.containerID) && isPlain(c.netns) && c.netns != "" && isName(c.ifName) && len(c.ifName) <= maxIfName &&
		c.path != "" && isPlain(c.args)
}

// isPlain reports whether JSON has s as it is.
func isPlain(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return true
}

// earlyConf is what a plain configuration says to the plugin. A wait is a whole number
// of seconds, -1 for the default.
type earlyConf struct {
	version, name, socket, spool string
	addWait, delWait             int
}

// wait is how long the agent may take.
func (c *earlyConf) wait(command string) time.Duration {
	seconds, fallback := c.addWait, defaultAddWait
	if command == "DEL" {
		seconds, fallback = c.delWait, defaultDelWait
	}
	if seconds < 0 {
		return fallback
	}
	return time.Duration(seconds) * time.Second
}

// socketMax is the kernel's bound without the byte that ends it. Source: unix(7).
const socketMax = 107

// plainConfig reads raw and reports whether it is plain: an object on whose first level
// every key of ours is there at most once, spelled as it should be, with a value that
// main would take. It puts blanks for line ends, which stand between words only: the
// protocol ends a message with one. Whether the rest is JSON the agent finds out.
func plainConfig(raw []byte) (c earlyConf, ok bool) {
	c.addWait, c.delWait = -1, -1
	s := scanner{raw: raw}
	if !s.object(&c) {
		return c, false
	}
	for i := range raw {
		if raw[i] == '\n' || raw[i] == '\r' {
			raw[i] = ' '
		}
	}
	good := c.version == "0.4.0" || c.version == "1.0.0" || c.version == "1.1.0"
	return c, good && isName(c.name) && isPath(c.socket) && len(c.socket) <= socketMax && (c.spool == "" || isPath(c.spool)) &&
		isWait(c.wait("ADD")) && isWait(c.wait("DEL"))
}

// isWait leaves out no wait at all, which means no limit to a socket.
func isWait(w time.Duration) bool { return 0 < w && w <= maxWait }

func isPath(s string) bool { return s != "" && s[0] == '/' && isPlain(s) }

// set keeps the value of one key of the first level.
func (c *earlyConf) set(key, value string) bool {
	switch key {
	case "cniVersion":
		return setText(&c.version, value)
	case "name":
		return setText(&c.name, value)
	case "socket":
		return setText(&c.socket, value)
	case "spool":
		return setText(&c.spool, value)
	case "addWaitSeconds":
		return setSeconds(&c.addWait, value)
	case "delWaitSeconds":
		return setSeconds(&c.delWait, value)
	}
	// encoding/json takes a key in any case, and folds letters beyond ASCII.
	return isPlain(key) && !folds(key, "cniVersion") && !folds(key, "name") && !folds(key, "socket") &&
		!folds(key, "spool") && !folds(key, "addWaitSeconds") && !folds(key, "delWaitSeconds")
}

func setText(slot *string, value string) bool {
	if *slot != "" || len(value) < 3 || value[0] != '"' || !isPlain(value[1:len(value)-1]) {
		return false
	}
	*slot = value[1 : len(value)-1]
	return true
}

func setSeconds(slot *int, value string) bool {
	if *slot >= 0 || value == "" || len(value) > 4 || value[0] == '0' && len(value) > 1 {
		return false
	}
	n := 0
	for i := 0; i < len(value); i++ {
		if value[i] < '0' || value[i] > '9' {
			return false
		}
		n = 10*n + int(value[i]-'0')
	}
	*slot = n
	return true
}

// folds reports whether a and b are the same but for the case of ASCII letters.
func folds(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		x, y := a[i], b[i]
		if x != y && (x|0x20 != y|0x20 || x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return true
}

// compose writes what stands before and behind the configuration in a request, as
// cnirpc.Request is encoded; a test compares.
func compose(head, tail []byte, c *earlyEnv, conf *earlyConf) (before, behind []byte, ok bool) {
	if !isPlain(version) {
		return nil, nil, false
	}
	h := writer{buf: head}
	h.text(`{"version":1,"minVersion":1,"plugin":"`)
	h.text(version)
	h.text(`","command":"`)
	h.text(c.command)
	h.text(`","containerID":"`)
	h.text(c.containerID)
	h.text(`","ifName":"`)
	h.text(c.ifName)
	h.text(`","netns":"`)
	h.text(c.netns)
	h.text(`","args":"`)
	h.text(c.args)
	h.text(`","config":`)
	t := writer{buf: tail}
	t.text(`,"waitMillis":`)
	t.number(int(conf.wait(c.command) / time.Millisecond))
	t.text("}\n")
	return head[:h.n], tail[:t.n], !h.full && !t.full
}

// writer fills a buffer.
type writer struct {
	buf  []byte
	n    int
	full bool // something had no room
}

func (w *writer) text(s string) {
	if len(s) > len(w.buf)-w.n {
		w.full = true
		return
	}
	w.n += copy(w.buf[w.n:], s)
}

// number writes n, which is not negative.
func (w *writer) number(n int) {
	if n >= 10 {
		w.number(n / 10)
	}
	w.text("0123456789"[n%10 : n%10+1])
}

// success takes the CNI result out of an answer that has one, or has none and no error.
func success(answer []byte) (result []byte, ok bool) {
	a := unsafe.String(unsafe.SliceData(answer), len(answer))
	at, ok := agentsEnd(a)
	if !ok {
		return nil, false
	}
	if a[at:] == "}" {
		return nil, true
	}
	const holds = `,"result":`
	s := scanner{raw: answer, at: at + len(holds)}
	if !has(a, at, holds+"{") {
		return nil, false
	}
	from := s.at
	_, ok = s.value()
	return answer[from:s.at], ok && a[s.at:] == "}"
}

// agentsEnd is where the agent's name and version end in an answer, which begins with
// them and has no blanks.
func agentsEnd(a string) (at int, ok bool) {
	const begins, named = `{"version":`, `,"agent":"`
	if !has(a, 0, begins) {
		return 0, false
	}
	at = len(begins)
	for at < len(a) && a[at] >= '0' && a[at] <= '9' {
		at++
	}
	if !has(a, at, named) {
		return 0, false
	}
	for at += len(named); at < len(a) && a[at] != '"'; at++ {
		if a[at] == '\\' {
			return 0, false
		}
	}
	return at + 1, at < len(a)
}

// has reports whether part stands in s at a place that is in it or at its end.
func has(s string, at int, part string) bool {
	return len(s)-at >= len(part) && s[at:at+len(part)] == part
}
