package apiproxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writeStatus answers as the API server does in an error of its own.
func writeStatus(w http.ResponseWriter, code int) {
	reason := metav1.StatusReasonInternalError
	switch code {
	case http.StatusNotFound:
		reason = metav1.StatusReasonNotFound
	case http.StatusServiceUnavailable:
		reason = metav1.StatusReasonServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	writeJSON(w, status(code, reason))
}

// writeExpired answers a watch with one event: the version it continues from is too old.
func writeExpired(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	writeJSON(w, map[string]any{"type": "ERROR", "object": status(http.StatusGone, metav1.StatusReasonExpired)})
}

func status(code int, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "a fault of the lab",
	}
}

func writeJSON(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) } // the client is gone

// isDiscovery reports whether a path is that of a discovery document: /api, /apis, or that of a
// group or of a group's version.
func isDiscovery(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	return (parts[0] == "apis" || parts[0] == "api") && len(parts) <= 3
}

// readable has the API server answer with plain JSON, if the answer is to be changed.
func readable(out *http.Request) {
	if f, _ := out.Context().Value(faultKey{}).(*Fault); f == nil || f.Group == "" {
		return
	}
	var accept []string
	for kind := range strings.SplitSeq(out.Header.Get("Accept"), ",") {
		if kind = strings.TrimSpace(kind); kind != "" && !strings.Contains(kind, "protobuf") {
			accept = append(accept, kind)
		}
	}
	out.Header.Set("Accept", cmp.Or(strings.Join(accept, ","), "application/json"))
	out.Header.Del("Accept-Encoding")
	out.Header.Del("If-None-Match")
}

// rewrite changes discovery documents as the request's fault says.
func (p *Proxy) rewrite(resp *http.Response) error {
	f, _ := resp.Request.Context().Value(faultKey{}).(*Fault)
	if f == nil || f.Group == "" || resp.StatusCode != http.StatusOK {
		return nil
	}
	if path := strings.Trim(resp.Request.URL.Path, "/"); path != "api" && path != "apis" {
		if !strings.HasPrefix(path+"/", "apis/"+f.Group+"/") {
			return nil
		}
		raw, err := json.Marshal(status(http.StatusNotFound, metav1.StatusReasonNotFound))
		resp.StatusCode, resp.Status = http.StatusNotFound, "404 Not Found"
		replace(resp, raw)
		return err
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if raw, err = withoutGroup(raw, f); err != nil {
		return err
	}
	replace(resp, raw)
	return nil
}

func replace(resp *http.Response, body []byte) {
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	resp.Header.Del("ETag")
}

// withoutGroup changes the list of groups, aggregated (items) or not (groups).
func withoutGroup(document []byte, f *Fault) ([]byte, error) {
	var list map[string]any
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, fmt.Errorf("read discovery: %w", err)
	}
	for _, field := range []string{"items", "groups"} {
		groups, ok := list[field].([]any)
		if !ok {
			continue
		}
		kept := []any{}
		for _, g := range groups {
			if group, _ := g.(map[string]any); nameOf(group) != f.Group {
				kept = append(kept, g)
			} else if f.Do == StaleGroup {
				makeStale(group)
				kept = append(kept, g)
			}
		}
		list[field] = kept
	}
	return json.Marshal(list)
}

// nameOf returns the name of a group in either form.
func nameOf(group map[string]any) string {
	if name, ok := group["name"].(string); ok {
		return name
	}
	meta, _ := group["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	return name
}

// makeStale empties the versions of a group in aggregated discovery.
func makeStale(group map[string]any) {
	versions, _ := group["versions"].([]any)
	for _, v := range versions {
		if version, ok := v.(map[string]any); ok {
			version["freshness"] = "Stale"
			delete(version, "resources")
		}
	}
}
