package main

import (
	"bytes"
	"io"
	"syscall"
	"time"
	"unsafe"
)

// Of the time of an ADD that goes well, Go's runtime would take a third to start and to
// end. So the linker has the program begin at start (assembly), which runs early on the
// kernel's stack: it sends a plain ADD or DEL to the agent and prints the answer. For
// anything else, and for all that goes wrong, early returns what it has heard so far,
// the runtime starts, and main does the call with the same meaning.
// docs/adr/0013 has the figures.
//
// There is no runtime: code here and in compose.go must not allocate, defer, start
// goroutines, use maps or convert to interfaces, and no variable of a package has been
// initialised by code. A test reads the built program and refuses calls into the
// runtime.

// Bounds of a call that is plain; a longer one is for main.
const (
	earlyConfigMax = 16 << 10
	earlyHeadMax   = 8 << 10
	earlyAnswerMax = 64 << 10
)

// process is what there is before anybody could own it. Pages of it that are not
// touched cost nothing.
var process struct {
	earlyStart
	config [earlyConfigMax]byte
	head   [earlyHeadMax]byte
	tail   [64]byte
	answer [earlyAnswerMax]byte
	socket syscall.RawSockaddrUnix
	rights struct { // a control message with one descriptor
		head syscall.Cmsghdr
		fd   int32
		_    int32
	}
	pieces [3]syscall.Iovec
	msg    syscall.Msghdr
	heard  handover // what early leaves to main
}

// earlyStart is what the assembly uses.
type earlyStart struct {
	stack unsafe.Pointer // as the kernel left it
	g     [128]uintptr   // its stack guard is zero
	tls   [2]uintptr     // holds g's address where that is kept in memory
}

// handover is the part of a call that was done already.
type handover struct {
	stdin  []byte        // read so far, perhaps blanks for line ends; the rest is still there
	answer []byte        // the agent's answer, a line without its end
	took   time.Duration // by an agent that has not answered
}

// input is what main reads as stdin, whose beginning early has read.
func (h handover) input(rest io.Reader) io.Reader {
	if h.stdin == nil {
		return rest
	}
	return io.MultiReader(bytes.NewReader(h.stdin), rest)
}

var _, _, _ = early, &process.g, &process.tls // the assembly names them

// early does a plain call and ends the process, or returns.
func early() {
	m := &process
	c, ok := environmentAt(m.stack)
	if !ok {
		return
	}
	stdin, ended := readAll(0, m.config[:])
	m.heard.stdin = stdin
	if !ended {
		return
	}
	conf, ok := plainConfig(stdin)
	if !ok {
		return
	}
	head, tail, ok := compose(m.head[:], m.tail[:], &c, &conf)
	if !ok {
		return
	}
	began := monotonic()
	answer, ok := earlyCall(&c, &conf, head, stdin, tail)
	if !ok {
		m.heard.took = monotonic() - began
		return
	}
	result, ok := success(answer)
	if !ok {
		m.heard.answer = answer
		return
	}
	if c.command == "ADD" && len(result) > 0 {
		line := result[:len(result)+1] // the brace behind the result makes room
		line[len(result)] = '\n'
		exit(printed(line))
	}
	exit(0)
}

// earlyCall sends the request, in three pieces, and returns the agent's answer.
func earlyCall(c *earlyEnv, conf *earlyConf, head, config, tail []byte) (answer []byte, ok bool) {
	m := &process
	netns, ok := openNetns(c.netns)
	if !ok {
		return nil, false
	}
	conn, ok := connect(conf.socket)
	if !ok {
		closeFD(netns)
		return nil, false
	}
	if ok = sendEarly(conn, netns, head, config, tail); ok {
		answer, ok = readLine(conn, m.answer[:], conf.wait(c.command))
	}
	closeFD(netns)
	closeFD(conn)
	return answer, ok
}

// openNetns opens the NUL-terminated path. Descriptors 0 to 2 are not for us: the
// runtime sees to it that they are open.
func openNetns(path string) (fd int, ok bool) {
	const here = ^uintptr(99) // AT_FDCWD, -100
	fd, ok = sysInt(syscall.SYS_OPENAT, here, dataOf(path), syscall.O_RDONLY|syscall.O_CLOEXEC)
	return aboveStandard(fd, ok)
}

// connect returns a connection to the agent's socket. Nothing done with it blocks: an
// agent that is stopped has a queue that fills up.
func connect(path string) (fd int, ok bool) {
	fd, ok = sysInt(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if fd, ok = aboveStandard(fd, ok); !ok {
		return 0, false
	}
	addr := &process.socket
	addr.Family = syscall.AF_UNIX
	for i := 0; i < len(path) && i < len(addr.Path)-1; i++ {
		addr.Path[i] = int8(path[i])
	}
	_, ok = sysInt(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(addr)), unsafe.Sizeof(*addr))
	if !ok {
		closeFD(fd)
	}
	return fd, ok
}

// aboveStandard gives back a descriptor of a standard stream, which was closed.
func aboveStandard(fd int, ok bool) (int, bool) {
	if ok && fd <= 2 {
		closeFD(fd)
		ok = false
	}
	return fd, ok
}

// sendEarly sends the three pieces as one message with netns beside it. A socket's buffer
// is many times as large; to an agent behind a smaller one main sends.
func sendEarly(conn, netns int, head, config, tail []byte) bool {
	m := &process
	m.rights.head.Level, m.rights.head.Type = syscall.SOL_SOCKET, syscall.SCM_RIGHTS
	m.rights.head.SetLen(syscall.SizeofCmsghdr + 4)
	m.rights.fd = int32(netns)
	m.pieces[0].Base, m.pieces[1].Base, m.pieces[2].Base = &head[0], &config[0], &tail[0]
	m.pieces[0].SetLen(len(head))
	m.pieces[1].SetLen(len(config))
	m.pieces[2].SetLen(len(tail))
	m.msg.Iov, m.msg.Iovlen, m.msg.Control = &m.pieces[0], uint64(len(m.pieces)), (*byte)(unsafe.Pointer(&m.rights))
	m.msg.SetControllen(int(unsafe.Sizeof(m.rights)))
	sent, ok := sysInt(syscall.SYS_SENDMSG, uintptr(conn), uintptr(unsafe.Pointer(&m.msg)), syscall.MSG_NOSIGNAL)
	return ok && sent == len(head)+len(config)+len(tail)
}

// readAll fills buf from fd, and reports whether that was all there is.
func readAll(fd int, buf []byte) (got []byte, ended bool) {
	n := 0
	for n < len(buf) {
		r, ok := read(fd, buf[n:])
		if !ok || r == 0 {
			return buf[:n], ok
		}
		n += r
	}
	return buf, false
}

// readLine reads up to the end of a line, which is to come within wait, and returns it
// without. What is behind it is dropped, as main does.
func readLine(fd int, buf []byte, wait time.Duration) (line []byte, ok bool) {
	left := syscall.Timespec{Sec: int64(wait / time.Second), Nsec: int64(wait % time.Second)}
	for n := 0; n < len(buf) && readable(fd, &left); {
		r, ok := read(fd, buf[n:])
		if !ok || r == 0 {
			return nil, false
		}
		for r += n; n < r; n++ {
			if buf[n] == '\n' {
				return buf[:n], true
			}
		}
	}
	return nil, false
}

// readable waits until there is something to read. The kernel takes the time it waited
// off left; the time for which the process was stopped does not count.
func readable(fd int, left *syscall.Timespec) bool {
	const pollIn = 1
	p := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: pollIn}
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(left)), 0, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0 && n == 1
		}
	}
}

func read(fd int, buf []byte) (n int, ok bool) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if errno != syscall.EINTR { // a process that was stopped and goes on
			return int(n), errno == 0
		}
	}
}

// printed writes text to stdout, and returns the exit code.
func printed(text []byte) (code int) {
	for len(text) > 0 {
		n, ok := sysInt(syscall.SYS_WRITE, 1, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)))
		if !ok || n <= 0 {
			return 1 // nobody reads what we say
		}
		text = text[n:]
	}
	return 0
}

func exit(code int) {
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
}

func closeFD(fd int) { _, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

func monotonic() time.Duration {
	const clockMonotonic = 1
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Sec)*time.Second + time.Duration(now.Nsec)
}

func sysInt(trap, a, b, c uintptr) (int, bool) {
	n, _, errno := syscall.RawSyscall(trap, a, b, c)
	return int(n), errno == 0
}

func dataOf(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s))) }
