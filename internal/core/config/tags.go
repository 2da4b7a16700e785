package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func tags(name, doc string, field func(*Config) *map[string]string, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Doc: doc,
		set: func(c *Config, v string) error {
			list, err := parseTags(v)
			*field(c) = list
			return err
		},
		get: func(c Config) string {
			if len(*field(&c)) == 0 {
				return ""
			}
			text, _ := json.Marshal(*field(&c)) // strings only, in the order of their keys: never fails
			return string(text)
		},
	}
}

// mostTags is how many tags an interface may have besides Trunkline's own.
const mostTags = vpc.MaxTags - vpc.OwnTags

// parseTags reads tags that EC2 accepts and that no component reads as its own. Source: EC2
// user guide, "Tag restrictions".
func parseTags(v string) (map[string]string, error) {
	if strings.TrimSpace(v) == "" {
		return nil, nil
	}
	var list map[string]string
	if err := json.Unmarshal([]byte(v), &list); err != nil {
		return nil, errors.New(`must be a JSON object of strings, such as {"team": "a"}`)
	}
	if len(list) > mostTags {
		return nil, fmt.Errorf("must have at most %d tags: EC2 takes %d, with Trunkline's own", mostTags, vpc.MaxTags)
	}
	for _, key := range slices.Sorted(maps.Keys(list)) {
		if err := tagKey(key); err != nil {
			return nil, fmt.Errorf("key %q %w", key, err)
		}
		if err := tagValue(list[key]); err != nil {
			return nil, fmt.Errorf("value of %q %w", key, err)
		}
	}
	return list, nil
}

// reservedKeys are parts of the keys that AWS, AWS's components and Trunkline write, or
// decide by.
func reservedKeys() []string {
	return []string{"k8s.amazonaws.com", "k8s.aws/", "trunkline.dev/", vpc.TagOwner}
}

func tagKey(key string) error {
	const most = 128
	switch {
	case key == "" || len([]rune(key)) > most:
		return fmt.Errorf("must have from 1 to %d characters, as a tag's key", most)
	case strings.ContainsFunc(key, unicode.IsControl):
		return errors.New("must not contain control characters")
	case strings.HasPrefix(strings.ToLower(key), "aws:"):
		return errors.New("is reserved by AWS: remove it")
	}
	for _, part := range reservedKeys() {
		if strings.Contains(key, part) {
			return fmt.Errorf("is reserved, like every key with %s: remove it", part)
		}
	}
	return nil
}
