package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
)

// formatVersion is written into every header. Adding a field keeps it; a change that an
// older agent cannot read increments it.
const formatVersion = 1

// sumLen is the length of a line's checksum in hexadecimal digits.
const sumLen = 8

// line is the content of one line: a header, the records of one commit, or both.
type line struct {
	Header  *header  `json:"h,omitempty"`
	Records []Record `json:"r,omitempty"`
}

// header is in the first line of a file and in the first line of each boot.
type header struct {
	Version int    `json:"version"`
	BootID  string `json:"boot,omitempty"`
}

// castagnoli is the polynomial with hardware support on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode renders l as "<crc32c> <json>\n".
func encode(l line) ([]byte, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("encode journal line: %w", err)
	}
	out := make([]byte, 0, sumLen+len(body)+2)
	out = fmt.Appendf(out, "%08x ", crc32.Checksum(body, castagnoli))
	out = append(out, body...)
	return append(out, '\n'), nil
}

// decode reads one line without its newline.
func decode(raw []byte) (line, error) {
	if len(raw) < sumLen+1 || raw[sumLen] != ' ' {
		return line{}, fmt.Errorf("line of %d bytes has no checksum", len(raw))
	}
	want, err := strconv.ParseUint(string(raw[:sumLen]), 16, 32)
	if err != nil {
		return line{}, fmt.Errorf("checksum %q is not a number", raw[:sumLen])
	}
	body := raw[sumLen+1:]
	if got := crc32.Checksum(body, castagnoli); got != uint32(want) {
		return line{}, fmt.Errorf("checksum is %08x, the line says %08x", got, want)
	}
	var l line
	if err := json.Unmarshal(body, &l); err != nil {
		return line{}, fmt.Errorf("checksum matches but the JSON is invalid: %w", err)
	}
	return l, nil
}

// replayed is the content of a file.
type replayed struct {
	live   map[string]json.RawMessage
	bootID string // of the last header
	good   int64  // bytes up to the end of the last complete line
	torn   bool   // bytes after good were dropped
}

// replay reads a file. An invalid last line is a torn append; an invalid line before the
// last, a missing header, or a newer format is damage.
func replay(content []byte) (replayed, error) {
	out := replayed{live: map[string]json.RawMessage{}}
	for number := 1; len(content) > 0; number++ {
		raw, rest, whole := bytes.Cut(content, []byte{'\n'})
		l, err := decode(raw)
		if !whole || (err != nil && len(rest) == 0) {
			out.torn = true
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("%w: line %d: %w", ErrCorrupt, number, err)
		}
		if err := out.fold(l, number); err != nil {
			return out, err
		}
		out.good += int64(len(raw)) + 1
		content = rest
	}
	return out, nil
}

func (r *replayed) fold(l line, number int) error {
	if number == 1 && l.Header == nil {
		return fmt.Errorf("%w: line 1 is not a header", ErrCorrupt)
	}
	if l.Header != nil {
		if l.Header.Version > formatVersion {
			return fmt.Errorf("%w: line %d: format %d is newer than %d, the one this agent reads",
				ErrCorrupt, number, l.Header.Version, formatVersion)
		}
		r.bootID = l.Header.BootID
	}
	apply(r.live, l.Records)
	return nil
}

func apply(live map[string]json.RawMessage, records []Record) {
	for _, rec := range records {
		if rec.Value == nil {
			delete(live, rec.Key)
			continue
		}
		live[rec.Key] = rec.Value
	}
}
