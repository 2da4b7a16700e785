package main

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// maxIfName is the kernel's IFNAMSIZ without the terminating zero byte.
const maxIfName = 15

// checkContainerID, checkNetworkName and checkIfName refuse the names that libcni's
// package utils refuses, with its error codes; a fuzz test compares them. That package
// compiles a regular expression at the start of every process that links it.
func checkContainerID(id string) *cnirpc.Error {
	if id == "" {
		return refuse(cnirpc.CodeUnknownContainer, "missing container id", "")
	}
	if !isName(id) {
		return refuse(cnirpc.CodeInvalidEnv, "invalid characters in container id", id)
	}
	return nil
}

func checkNetworkName(name string) *cnirpc.Error {
	if name == "" {
		return refuse(cnirpc.CodeInvalidConfig, "missing network name", "")
	}
	if !isName(name) {
		return refuse(cnirpc.CodeInvalidConfig, "invalid characters in network name", name)
	}
	return nil
}

func checkIfName(name string) *cnirpc.Error {
	wrong := ""
	switch {
	case name == "":
		wrong = "it is empty"
	case len(name) > maxIfName:
		wrong = fmt.Sprintf("it is too long: %d bytes, at most %d", len(name), maxIfName)
	case name == "." || name == "..":
		wrong = "it is a directory name"
	case strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }):
		wrong = "it contains a slash, a colon or white space"
	default:
		return nil
	}
	return refuse(cnirpc.CodeInvalidEnv, fmt.Sprintf("invalid interface name %q", name), wrong)
}

// isName reports whether s is a letter or digit followed by letters, digits, dots,
// underscores and hyphens. Source: CNI specification, "Parameters".
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

func refuse(code uint, msg, details string) *cnirpc.Error {
	return &cnirpc.Error{Code: code, Msg: msg, Details: details}
}
