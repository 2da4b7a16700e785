package policy

import "testing"

func TestObjectsAreCompleteByTheAPIServerOrACopy(t *testing.T) {
	for name, tt := range map[string]struct {
		before, now cluster
		want        bool
	}{
		"listed":                            {cluster{}, cluster{known: true, synced: true}, true},
		"policies and namespaces only":      {cluster{}, cluster{known: true}, false},
		"of a copy":                         {cluster{known: true, copied: true}, cluster{known: true, copied: true}, true},
		"of a copy, and judged on more":     {cluster{copied: true}, cluster{copied: true}, false},
		"of a copy, and the rest is known":  {cluster{copied: true}, cluster{known: true, copied: true}, true},
		"listed once, and now without pods": {cluster{known: true, synced: true, copied: true}, cluster{known: true, copied: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			of := tt.before
			l := newListing(&of)
			l.complete()
			of = tt.now
			if got := l.complete(); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
