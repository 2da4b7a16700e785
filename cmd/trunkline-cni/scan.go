package main

import "unsafe"

// scanner goes through JSON without taking it apart: it finds where strings and values
// end, minding brackets but not which, and leaves it to others whether all is well.
type scanner struct {
	raw []byte
	at  int
}

// object reads an object and tells c of its keys. Nothing but blanks may be around it.
func (s *scanner) object(c *earlyConf) bool {
	if s.blanks(); !s.is('{') {
		return false
	}
	for {
		key, ok := s.text()
		if !ok || !s.is(':') {
			return false
		}
		value, ok := s.value()
		if !ok || !c.set(key, value) {
			return false
		}
		if s.is('}') {
			return s.at == len(s.raw)
		}
		if !s.is(',') {
			return false
		}
	}
}

// is steps over b and the blanks behind it.
func (s *scanner) is(b byte) bool {
	if s.at >= len(s.raw) || s.raw[s.at] != b {
		return false
	}
	s.at++
	s.blanks()
	return true
}

func (s *scanner) blanks() {
	for s.at < len(s.raw) && isBlank(s.raw[s.at]) {
		s.at++
	}
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

// text steps over a string and returns what is between its quotes, escapes and all.
func (s *scanner) text() (inside string, ok bool) {
	began := s.at
	if !s.quoted() {
		return "", false
	}
	inside = s.from(began + 1)
	inside = inside[:len(inside)-1]
	s.blanks()
	return inside, true
}

// quoted steps over a string.
func (s *scanner) quoted() bool {
	if s.at >= len(s.raw) || s.raw[s.at] != '"' {
		return false
	}
	for s.at++; s.at < len(s.raw); s.at++ {
		switch b := s.raw[s.at]; {
		case b == '"':
			s.at++
			return true
		case b == '\\':
			s.at++
			if s.at >= len(s.raw) || s.raw[s.at] < ' ' {
				return false
			}
		case b < ' ':
			return false
		}
	}
	return false
}

// value steps over any value and returns its text.
func (s *scanner) value() (text string, ok bool) {
	began, depth := s.at, 0
	for s.at < len(s.raw) {
		switch b := s.raw[s.at]; {
		case b == '"':
			if !s.quoted() {
				return "", false
			}
			continue
		case b == '{' || b == '[':
			depth++
		case (b == '}' || b == ']' || b == ',') && depth == 0:
			return s.trimmed(began)
		case b == '}' || b == ']':
			depth--
		}
		s.at++
	}
	return "", false
}

// trimmed is the text from began to here, without blanks at its end.
func (s *scanner) trimmed(began int) (text string, ok bool) {
	text = s.from(began)
	for len(text) > 0 && isBlank(text[len(text)-1]) {
		text = text[:len(text)-1]
	}
	return text, text != ""
}

func (s *scanner) from(began int) string {
	return unsafe.String(unsafe.SliceData(s.raw), s.at)[began:]
}
