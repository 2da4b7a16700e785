package query

import (
	"bytes"
	"encoding"
	"encoding/xml"
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// timeForm is EC2's time format: milliseconds, always UTC.
const timeForm = "2006-01-02T15:04:05.000Z"

// Encode writes a struct's members as XML elements. A list is an element with <item>
// children; a nil pointer and an empty "omitempty" member are omitted.
func Encode(b *bytes.Buffer, message any) error {
	v := reflect.ValueOf(message)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return encodeStruct(b, v)
}

func encodeStruct(b *bytes.Buffer, v reflect.Value) error {
	for _, f := range fieldsOf(v.Type()) {
		member := v.FieldByIndex(f.index)
		if f.omitempty && (member.IsZero() || (member.Kind() == reflect.Slice && member.Len() == 0)) {
			continue
		}
		if err := encodeElement(b, f.name, member); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func encodeElement(b *bytes.Buffer, name string, v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	b.WriteString("<" + name + ">")
	if err := encodeContent(b, v); err != nil {
		return err
	}
	b.WriteString("</" + name + ">")
	return nil
}

func encodeContent(b *bytes.Buffer, v reflect.Value) error {
	switch x := v.Interface().(type) {
	case time.Time:
		b.WriteString(x.UTC().Format(timeForm))
		return nil
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			return err
		}
		return xml.EscapeText(b, text)
	}
	switch v.Kind() {
	case reflect.Struct:
		return encodeStruct(b, v)
	case reflect.Slice:
		for i := range v.Len() {
			if err := encodeElement(b, "item", v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.String:
		return xml.EscapeText(b, []byte(v.String()))
	case reflect.Bool:
		b.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int64:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
	default:
		return fmt.Errorf("cannot encode a %s", v.Type())
	}
	return nil
}
