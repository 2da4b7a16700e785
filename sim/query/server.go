package query

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// maxBody is how long a request may be, in bytes.
const maxBody = 1 << 20

// Service is one AWS service: its table of actions and its dialect.
type Service struct {
	Name     string // of the credential scope: "ec2" or "sts"
	Version  string // the API version its clients send
	Actions  []Action
	Refusals []Refusal
	Dialect  Dialect
}

// Server serves the Query protocol for several services on one address; the Version
// parameter selects the service. Make it with New.
type Server struct {
	options  Options
	services map[string]*table // by version

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

type table struct {
	Service
	byName   map[string]Action
	refusals refusals
}

// Options configure a Server; Cloud, IAM, Faults, Calls and Region are required.
type Options struct {
	Cloud  *cloud.Cloud
	IAM    *iam.Account
	Faults *faults.Injector
	Calls  *faults.Log
	Region string
	// SigningRegions are the regions that requests to global hosts are signed for, by
	// host; requests to all others are signed for Region.
	SigningRegions map[string]string
	// Latency delays each response after its effect, in addition to injected latency. AWS's
	// SDK for Go fails to read many long responses that come without any: see
	// TestALongAnswerWithoutLatencyIsLostByTheSDKsClient.
	Latency time.Duration
	Seed    uint64 // of request ids
	Now     func() time.Time
	Log     *slog.Logger
}

// New makes a server. It panics if a table has an action twice.
func New(o Options, services ...Service) *Server {
	s := &Server{options: o, services: map[string]*table{}, rng: rand.New(rand.NewPCG(o.Seed, 0x726571))}
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	if s.options.Log == nil {
		s.options.Log = slog.New(slog.DiscardHandler)
	}
	for _, service := range services {
		t := &table{Service: service, byName: map[string]Action{}, refusals: newRefusals(service.Refusals)}
		for _, a := range service.Actions {
			if _, twice := t.byName[a.Name]; twice {
				panic("query: action " + a.Name + " is in the table twice")
			}
			t.byName[a.Name] = a
		}
		s.services[service.Version] = t
	}
	return s
}

// request is one call in flight.
type request struct {
	http *http.Request
	body []byte
	form url.Values
	// presigned are the parameters of a presigned address that sign it.
	presigned url.Values

	table  *table
	action Action
	call   *Call
	record faults.Record
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := s.requestID()
	req := &request{
		http: r, call: &Call{Context: r.Context(), RequestID: id},
		record: faults.Record{Time: s.options.Now(), RequestID: id},
	}
	answer, err := s.serve(req)
	s.delay(r.Context())
	s.finish(req, err)
	if errors.Is(err, faults.ErrNoReply) {
		panic(http.ErrAbortHandler) // closes the connection without a response
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.Header().Set("x-amzn-RequestId", id)
	status, body := http.StatusOK, answer
	if err != nil {
		status, body = s.failure(req, err)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client disconnected
}

// delay waits for the latency, or until the client disconnects.
func (s *Server) delay(ctx context.Context) {
	if s.options.Latency <= 0 {
		return
	}
	timer := time.NewTimer(s.options.Latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve returns the XML response of a call, or an error.
func (s *Server) serve(req *request) ([]byte, error) {
	if err := s.read(req); err != nil {
		return nil, err
	}
	flight := s.options.Faults.Begin(req.action.Name, faults.CallInfo{RequestID: req.call.RequestID})
	if err := s.authenticate(req); err != nil {
		return nil, err
	}
	flight.Identify(req.call.Principal.ARN)
	if err := flight.Before(req.http.Context()); err != nil {
		return nil, err
	}
	req.call.State = s.view(req.action)
	answer, err := s.dispatch(req)
	if lost := flight.After(req.http.Context()); lost != nil {
		return nil, lost
	}
	return answer, err
}

// read finds the service and the action of a request.
func (s *Server) read(req *request) error {
	if err := req.readForm(); err != nil {
		return err
	}
	for _, name := range []string{"Action", "Version"} {
		if len(req.form[name]) > 1 {
			return givenTwice(name)
		}
	}
	name, version := req.form.Get("Action"), req.form.Get("Version")
	if name == "" {
		return cloud.Errorf("MissingAction", "The request is missing an action or a required parameter.")
	}
	if req.table = s.services[version]; req.table == nil {
		return cloud.Errorf("NoSuchVersion", "The requested version (%s) is not valid.", version)
	}
	req.record.Service = req.table.Name
	action, ok := req.table.byName[name]
	if !ok {
		return cloud.Errorf("InvalidAction", "The action %s is not valid for this web service.", name)
	}
	// Not before: calls are counted by action, and only known actions are bounded.
	req.action, req.call.Action, req.record.Action = action, name, name
	req.call.refusals = req.table.refusals
	return nil
}

// formType is the one content type of the protocol.
const formType = "application/x-www-form-urlencoded"

// presignPrefix is that of the parameters that sign an address.
const presignPrefix = "X-Amz-"

func invalidRequest(status int, format string, args ...any) error {
	return &cloud.Error{Code: "InvalidRequest", Message: fmt.Sprintf(format, args...), Status: status}
}

// readForm reads the parameters of a request: those of the address of a GET, which may
// be presigned, or the form in the body of a POST.
func (req *request) readForm() error {
	switch req.http.Method {
	case http.MethodGet:
		return req.readAddress()
	case http.MethodPost:
		return req.readBody()
	default:
		return invalidRequest(http.StatusMethodNotAllowed, "The request method %s is not supported; use GET or POST.", req.http.Method)
	}
}

func (req *request) readAddress() (err error) {
	if req.form, err = url.ParseQuery(req.http.URL.RawQuery); err != nil {
		return malformedQuery(err)
	}
	req.presigned = url.Values{}
	for name, values := range req.form {
		if strings.HasPrefix(name, presignPrefix) {
			req.presigned[name] = values
			delete(req.form, name)
		}
	}
	return nil
}

func malformedQuery(err error) error {
	return cloud.Errorf("MalformedQueryString", "The query string is malformed: %v", err)
}

func (req *request) readBody() (err error) {
	r := req.http
	given := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(given); err != nil || media != formType {
		return invalidRequest(http.StatusUnsupportedMediaType, "The content type %s is not supported; use %s.", given, formType)
	}
	if r.URL.RawQuery != "" {
		return invalidRequest(http.StatusBadRequest, "Parameters in the address are not supported; send them in the body.")
	}
	if req.body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1)); err != nil {
		return faults.ErrNoReply // the client disconnected before the end of the body
	}
	if len(req.body) > maxBody {
		return &cloud.Error{Code: "RequestEntityTooLarge", Message: fmt.Sprintf("The request is longer than %d bytes.", maxBody), Status: http.StatusRequestEntityTooLarge}
	}
	if req.form, err = url.ParseQuery(string(req.body)); err != nil {
		return malformedQuery(err)
	}
	return nil
}

// view returns the account that a call may see. Every call sets the needed history,
// so that it exists when a describe reads it.
func (s *Server) view(a Action) *cloud.State {
	plan := s.options.Faults.Plan()
	s.options.Cloud.Retain(time.Duration(max(plan.DescribeLag, plan.MetadataLag)))
	if !a.ReadOnly {
		return s.options.Cloud.State()
	}
	return s.options.Cloud.StateAgo(time.Duration(plan.DescribeLag))
}

// dispatch decodes the request, checks permission and runs the handler.
func (s *Server) dispatch(req *request) ([]byte, error) {
	message := req.action.newRequest()
	if err := req.table.refusals.check(req.action.Name, req.form); err != nil {
		return nil, err
	}
	if err := Decode(req.form, message); err != nil {
		return nil, err
	}
	if req.action.permit != nil {
		wanted, wrong := req.action.permit(req.call, message)
		if err := req.call.Principal.Authorize(wanted); err != nil {
			return nil, s.unauthorized(req, err)
		}
		if wrong != nil {
			return nil, wrong
		}
	}
	if d, ok := message.(interface{ dryRun() bool }); ok && d.dryRun() {
		return nil, &cloud.Error{
			Code: "DryRunOperation", Message: "Request would have succeeded, but DryRun flag is set.",
			Status: http.StatusPreconditionFailed,
		}
	}
	response, err := req.action.do(req.call, message)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = req.table.Dialect.success(&b, req.call, response)
	return b.Bytes(), err
}

// failure converts an error into a response. An error that is not EC2's is an
// internal one and is logged.
func (s *Server) failure(req *request, err error) (int, []byte) {
	var e *cloud.Error
	if !errors.As(err, &e) {
		s.options.Log.Error("API call failed with an internal error", "action", req.record.Action, "request", req.call.RequestID, "err", err)
		e = &cloud.Error{Code: "InternalError", Message: "An internal error has occurred", Status: http.StatusInternalServerError}
	}
	dialect := EC2
	if req.table != nil {
		dialect = req.table.Dialect
	}
	var b bytes.Buffer
	dialect.failure(&b, req.call, e)
	return e.Status, b.Bytes()
}

// finish logs a call.
func (s *Server) finish(req *request, err error) {
	rec := req.record
	rec.Millis = float64(s.options.Now().Sub(rec.Time).Microseconds()) / 1000
	rec.Principal = req.call.Principal.ARN
	rec.Params = map[string]string{}
	for _, name := range sortedKeys(req.form) {
		if name != "Action" && name != "Version" && name != "WebIdentityToken" && len(rec.Params) < maxLoggedParams {
			rec.Params[clip(name)] = clip(req.form[name][0])
		}
	}
	var e *cloud.Error
	switch {
	case errors.Is(err, faults.ErrNoReply):
		rec.Fault = "no-reply"
	case errors.As(err, &e):
		rec.Code, rec.Message = e.Code, clip(e.Message)
	case err != nil:
		rec.Code, rec.Message = "InternalError", err.Error()
	}
	s.options.Calls.Add(rec)
	s.options.Log.Debug("API call", "action", rec.Action, "code", rec.Code,
		"ms", rec.Millis, "request", rec.RequestID, "principal", rec.Principal)
}

// Limits of one call in the log: bytes of a text, and parameters. The longest list
// that EC2 accepts fits.
const (
	maxLogged       = 1024
	maxLoggedParams = 1100
)

func clip(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return strings.ToValidUTF8(text[:maxLogged], "") + "…"
}

// requestID makes an id in AWS's form: a version 4 UUID.
func (s *Server) requestID() string {
	var b [16]byte
	s.mu.Lock()
	for n := range b {
		b[n] = byte(s.rng.Uint32())
	}
	s.mu.Unlock()
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
