package query

import (
	"bytes"
	"encoding/xml"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Dialect is the XML envelope of a service's responses.
type Dialect uint8

// Dialects.
const (
	// EC2 puts the request id first and the members beside it.
	EC2 Dialect = iota
	// Query is the dialect of STS and most other services: members in <ActionResult>,
	// the request id in <ResponseMetadata>.
	Query
)

const (
	ec2Namespace = "http://ec2.amazonaws.com/doc/2016-11-15/"
	stsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/"
)

func (d Dialect) success(b *bytes.Buffer, c *Call, message any) error {
	b.WriteString(xml.Header)
	if d == EC2 {
		b.WriteString("<" + c.Action + `Response xmlns="` + ec2Namespace + `"><requestId>` + c.RequestID + "</requestId>")
		if err := Encode(b, message); err != nil {
			return err
		}
		b.WriteString("</" + c.Action + "Response>")
		return nil
	}
	b.WriteString("<" + c.Action + `Response xmlns="` + stsNamespace + `"><` + c.Action + "Result>")
	if err := Encode(b, message); err != nil {
		return err
	}
	b.WriteString("</" + c.Action + "Result><ResponseMetadata><RequestId>" + c.RequestID +
		"</RequestId></ResponseMetadata></" + c.Action + "Response>")
	return nil
}

// errorXML is the part both dialects share.
type errorXML struct {
	Type    string `q:"Type,omitempty"`
	Code    string `q:"Code"`
	Message string `q:"Message"`
}

func (d Dialect) failure(b *bytes.Buffer, c *Call, e *cloud.Error) {
	b.WriteString(xml.Header)
	body := errorXML{Code: e.Code, Message: e.Message}
	if d == EC2 {
		b.WriteString("<Response><Errors><Error>")
		_ = Encode(b, body) // strings only: cannot fail
		b.WriteString("</Error></Errors><RequestID>" + c.RequestID + "</RequestID></Response>")
		return
	}
	body.Type = "Sender"
	if e.Status >= 500 {
		body.Type = "Receiver"
	}
	b.WriteString(`<ErrorResponse xmlns="` + stsNamespace + `"><Error>`)
	_ = Encode(b, body) // strings only: cannot fail
	b.WriteString("</Error><RequestId>" + c.RequestID + "</RequestId></ErrorResponse>")
}
