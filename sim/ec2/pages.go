package ec2

import (
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

// Page is the part of a describe that asks for one page of many.
type Page struct {
	MaxResults *int   `q:"MaxResults"`
	NextToken  string `q:"NextToken"`
}

// Page sizes EC2 takes; some actions take less than maxPage.
const (
	minPage   = 5
	maxPage   = 1000
	smallPage = 100
)

// listing is a describe of one kind of item.
type listing[T any] struct {
	kind    cloud.Kind
	set     string // what EC2's errors call the list of ids, without "Set"
	all     []T    // in the order of their ids
	id      func(T) string
	ids     []string // asked for; empty is all
	filters []Filter
	attrs   attributes[T]
	tags    func(T) cloud.Tags
	page    Page
	most    int // items on a page; zero is maxPage
}

// shown is one page of a listing as show prints its items, and the token of the
// next page.
func shown[T, X any](c *query.Call, l listing[T], show func(T) X) ([]X, string, error) {
	items, next, err := l.list(c)
	return each(items, show), next, err
}

// list returns one page of the items asked for, and the token of the next page.
func (l listing[T]) list(c *query.Call) (items []T, next string, err error) {
	items, err = l.selected()
	if err != nil {
		return nil, "", err
	}
	if items, err = keep(items, l.filters, l.attrs, l.tags); err != nil {
		return nil, "", err
	}
	return l.cut(c, items)
}

// selected are the items whose ids were asked for; an unknown id refuses all.
func (l listing[T]) selected() ([]T, error) {
	if len(l.ids) == 0 {
		return l.all, nil
	}
	if l.page.MaxResults != nil {
		return nil, cloud.Errorf("InvalidParameterCombination",
			"The parameter %sSet cannot be used with the parameter maxResults", l.set)
	}
	for _, id := range l.ids {
		if err := l.kind.CheckID(id); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(l.all, func(item T) bool { return l.id(item) == id }) {
			return nil, l.kind.NotFound(id)
		}
	}
	return slices.DeleteFunc(slices.Clone(l.all), func(item T) bool {
		return !slices.Contains(l.ids, l.id(item))
	}), nil
}

// cut takes one page out of items. The token names the last item given, so pages
// neither repeat nor skip what stays while others come and go.
func (l listing[T]) cut(c *query.Call, items []T) ([]T, string, error) {
	size, err := l.size()
	if err != nil {
		return nil, "", err
	}
	seal := l.seal(c.Action)
	if l.page.NextToken != "" {
		after, err := unseal(l.page.NextToken, seal)
		if err != nil {
			return nil, "", err
		}
		items = slices.DeleteFunc(slices.Clone(items), func(item T) bool { return l.id(item) <= after })
	}
	if len(items) <= size {
		return items, "", nil
	}
	last := l.id(items[size-1])
	return items[:size], base64.RawURLEncoding.EncodeToString([]byte(seal + "\n" + last)), nil
}

// size is how many items the page takes. Asking for more than EC2 has room for is
// no mistake: the page is as long as it can be.
func (l listing[T]) size() (int, error) {
	most := l.most
	if most == 0 {
		most = maxPage
	}
	m := l.page.MaxResults
	switch {
	case m == nil:
		return most, nil
	case *m < minPage:
		return 0, cloud.InvalidParameter("Value ( %d ) for parameter maxResults is invalid. Expecting a value greater than %d.", *m, minPage)
	}
	return min(*m, most), nil
}

// seal ties a token to the question it belongs to.
func (l listing[T]) seal(action string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %q", action, l.filters)
	return fmt.Sprintf("%016x", h.Sum64())
}

func unseal(token, seal string) (after string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		if got, last, ok := strings.Cut(string(raw), "\n"); ok && got == seal {
			return last, nil
		}
	}
	return "", cloud.Errorf("InvalidNextToken", "The token '%s' is invalid", token)
}
