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

// Page is the paging part of a describe request.
type Page struct {
	MaxResults *int   `q:"MaxResults"`
	NextToken  string `q:"NextToken"`
}

// Page sizes that EC2 accepts; some actions accept less than maxPage.
const (
	minPage   = 5
	maxPage   = 1000
	smallPage = 100
)

// listing is a describe of one kind of item.
type listing[T any] struct {
	kind    cloud.Kind
	set     string // name of the id list in EC2's errors, without "Set"
	all     []T    // in the order of their ids
	id      func(T) string
	ids     []string // requested ids; empty is all
	filters []Filter
	attrs   attributes[T]
	tags    func(T) cloud.Tags
	page    Page
	only    func(T) bool // the others are not shown; nil is all
	most    int          // items on a page; zero is maxPage
	usual   int          // items on a page of a request without MaxResults; zero is most
	strict  bool         // a request for more items than most is refused
}

// listPage returns one page of a listing, converted by show, and the token of the
// next page.
func listPage[T, X any](c *query.Call, l listing[T], show func(T) X) ([]X, string, error) {
	items, next, err := l.list(c)
	return each(items, show), next, err
}

// list returns one page of the requested items and the token of the next page.
func (l listing[T]) list(c *query.Call) (items []T, next string, err error) {
	items, err = l.selected()
	if err != nil {
		return nil, "", err
	}
	if l.only != nil {
		items = slices.DeleteFunc(slices.Clone(items), func(item T) bool { return !l.only(item) })
	}
	if items, err = keep(c, items, l.filters, l.attrs, l.tags); err != nil {
		return nil, "", err
	}
	return l.cut(c, items)
}

// selected returns the items with the requested ids; an unknown id is an error.
func (l listing[T]) selected() ([]T, error) {
	if len(l.ids) == 0 {
		return l.all, nil
	}
	if l.page.MaxResults != nil {
		return nil, cloud.Errorf("InvalidParameterCombination",
			"The parameter %sSet cannot be used with the parameter maxResults", l.set)
	}
	var missing []string
	for _, id := range l.ids {
		if err := l.kind.CheckID(id); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(l.all, func(item T) bool { return l.id(item) == id }) {
			missing = append(missing, id)
		}
	}
	switch {
	case len(missing) > 0 && l.kind == cloud.KindInstance:
		return nil, l.kind.NotFound(missing...)
	case len(missing) > 0: // whether EC2 names all ids of other kinds is not known
		return nil, l.kind.NotFound(missing[0])
	}
	return slices.DeleteFunc(slices.Clone(l.all), func(item T) bool {
		return !slices.Contains(l.ids, l.id(item))
	}), nil
}

// cut returns one page of items. The token names the last item of a page, so that
// pages neither repeat nor skip items while others are created and deleted.
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

// size returns the number of items on the page. A request for more than EC2's maximum
// is valid and gets the maximum, except of a strict listing; the text of that error is
// ours.
func (l listing[T]) size() (int, error) {
	most := l.most
	if most == 0 {
		most = maxPage
	}
	m := l.page.MaxResults
	switch {
	case m == nil && l.usual > 0:
		return l.usual, nil
	case m == nil:
		return most, nil
	case *m < minPage:
		return 0, cloud.InvalidParameter("Value ( %d ) for parameter maxResults is invalid. Expecting a value greater than %d.", *m, minPage)
	case l.strict && *m > most:
		return 0, cloud.InvalidParameter("Value ( %d ) for parameter maxResults is invalid. Expecting a value of at most %d.", *m, most)
	}
	return min(*m, most), nil
}

// seal identifies the query that a token belongs to.
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
