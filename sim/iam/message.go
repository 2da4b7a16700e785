package iam

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrMessage is the reason to refuse an encoded authorization message: it was not made
// by this account, or it is damaged.
var ErrMessage = errors.New("encoded authorization message is not valid")

// newSealing derives the key of encoded messages. It is the same for the same account
// and seed, so that a restarted world decodes the messages that it gave out before.
func newSealing(number string, seed uint64) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "encoded authorization messages of %s, seed %d", number, seed))
}

func (a *Account) sealer() (cipher.AEAD, error) {
	block, err := aes.NewCipher(a.sealing[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// EncodeMessage returns the details of a refusal as clients receive them: opaque, for
// DecodeMessage. Source: API_DecodeAuthorizationMessage.html.
func (a *Account) EncodeMessage(d *DeniedError) (string, error) {
	plain, err := json.Marshal(newMessage(d))
	if err != nil {
		return "", fmt.Errorf("encode authorization message: %w", err)
	}
	s, err := a.sealer()
	if err != nil {
		return "", fmt.Errorf("encode authorization message: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(s.Seal(nil, nil, plain, nil)), nil
}

// DecodeMessage returns the JSON document in an encoded message; its error wraps
// ErrMessage.
func (a *Account) DecodeMessage(text string) (string, error) {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrMessage, err)
	}
	s, err := a.sealer()
	if err != nil {
		return "", fmt.Errorf("decode authorization message: %w", err)
	}
	plain, err := s.Open(nil, nil, sealed, nil)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return string(plain), nil
}

// items is AWS's JSON form of a list.
type items[T any] struct {
	Items []T `json:"items"`
}

type messagePrincipal struct {
	ID  string `json:"id"`
	ARN string `json:"arn"`
}

type messageValue struct {
	Value string `json:"value"`
}

type messageCondition struct {
	Key    string              `json:"key"`
	Values items[messageValue] `json:"values"`
}

type messageContext struct {
	Principal  messagePrincipal        `json:"principal"`
	Action     string                  `json:"action"`
	Resource   string                  `json:"resource"`
	Conditions items[messageCondition] `json:"conditions"`
}

// message is the document of AWS's example in API_DecodeAuthorizationMessage.html. The
// lists of statements are empty: refusals here do not record them.
type message struct {
	Allowed      bool            `json:"allowed"`
	ExplicitDeny bool            `json:"explicitDeny"`
	Matched      items[struct{}] `json:"matchedStatements"`
	Failures     items[struct{}] `json:"failures"`
	Context      messageContext  `json:"context"`
}

func newMessage(d *DeniedError) message {
	m := message{ExplicitDeny: d.Explicit, Matched: items[struct{}]{[]struct{}{}}, Failures: items[struct{}]{[]struct{}{}}, Context: messageContext{
		Principal: messagePrincipal{ARN: d.Principal, ID: d.PrincipalID},
		Action:    d.Request.Action, Resource: d.Request.Resource, Conditions: items[messageCondition]{[]messageCondition{}},
	}}
	for _, key := range sortedKeys(d.Request.Keys) {
		c := messageCondition{Key: key}
		for _, v := range slices.Sorted(slices.Values(d.Request.Keys[key])) {
			c.Values.Items = append(c.Values.Items, messageValue{strings.ToValidUTF8(v, "\ufffd")})
		}
		m.Context.Conditions.Items = append(m.Context.Conditions.Items, c)
	}
	return m
}
