package connectivity

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// The part of the JUnit schema that CI systems read.
type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Time      string      `xml:"time,attr"`
	Timestamp string      `xml:"timestamp,attr"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes r as JUnit XML: one suite, with the group of a case as its class.
func (r Report) JUnit(w io.Writer) error {
	suite := junitSuite{
		Name: "trunkline connectivity test", Tests: len(r.Cases), Failures: r.Failed, Errors: r.Aborted, Skipped: r.Skipped,
		Time: fmt.Sprintf("%.3f", r.Seconds), Timestamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
	}
	for _, o := range r.Cases {
		group, _, _ := strings.Cut(o.Name, "/")
		c := junitCase{Name: o.Name, Class: "connectivity." + group, Time: fmt.Sprintf("%.3f", o.Millis/1000)}
		head, _, _ := strings.Cut(o.Reason, "\n")
		switch o.Status {
		case Failed:
			c.Failure = &junitMessage{Message: head, Text: o.Asserts + "\n" + o.Reason}
		case Skipped:
			c.Skipped = &junitMessage{Message: head}
		case Aborted:
			c.Error = &junitMessage{Message: head, Text: o.Asserts + "\n" + o.Reason}
		case Passed:
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(junitSuites{Suite: suite}); err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	_, err := io.WriteString(w, "\n")
	return err
}
