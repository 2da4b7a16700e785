package imds

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// tokens issues session tokens without a table: each carries its expiry and a MAC
// over expiry and instance, so that another instance cannot use it.
type tokens struct{ key [32]byte }

func newTokens() tokens {
	var t tokens
	_, _ = rand.Read(t.key[:]) // never fails: crypto/rand ends the process on an error
	return t
}

// Layout of a token before base64: 8 bytes of expiry in Unix seconds, 2 bytes "AQ",
// as in EC2's tokens, 32 bytes of MAC.
const (
	expiryBytes = 8
	headBytes   = 2
	tokenBytes  = headBytes + expiryBytes + sha256.Size
)

func (t tokens) issue(id vpc.InstanceID, expires time.Time) string {
	raw := append(make([]byte, 0, tokenBytes), 1, 0)
	raw = binary.BigEndian.AppendUint64(raw, uint64(expires.Unix()))
	return base64.URLEncoding.EncodeToString(append(raw, t.code(id, raw)...))
}

// check returns the expiry of a token, and whether this server issued it to the
// instance.
func (t tokens) check(token string, id vpc.InstanceID) (time.Time, bool) {
	raw, err := base64.URLEncoding.DecodeString(token)
	if err != nil || len(raw) != tokenBytes {
		return time.Time{}, false
	}
	head := raw[:headBytes+expiryBytes]
	if !hmac.Equal(raw[len(head):], t.code(id, head)) {
		return time.Time{}, false
	}
	return time.Unix(int64(binary.BigEndian.Uint64(head[headBytes:])), 0), true
}

func (t tokens) code(id vpc.InstanceID, head []byte) []byte {
	mac := hmac.New(sha256.New, t.key[:])
	mac.Write(head)
	mac.Write([]byte(id))
	return mac.Sum(nil)
}
