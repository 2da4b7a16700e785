package sts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	awssts "github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/aws-sdk-go-v2/service/sts/types"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/sim/iam"
)

const (
	account  = "111122223333"
	rootARN  = "arn:aws:iam::" + account + ":root"
	mayAll   = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "sts:*", "Resource": "*"}}`
	mayNone  = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}}`
	mustNot  = `{"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Action": "sts:AssumeRole", "Resource": "*"}}`
	taggable = `"sts:AssumeRole", "sts:TagSession", "sts:SetSourceIdentity"`
)

// trusting is a trust policy that allows actions to principals, under a condition.
func trusting(actions, principal, condition string) []byte {
	if condition == "" {
		condition = "{}"
	}
	return fmt.Appendf(nil, `{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": %s, "Action": [%s], "Condition": %s}]}`,
		principal, actions, condition)
}

func principal(arn string) string { return `{"AWS": "` + arn + `"}` }

func (s *service) role(t *testing.T, r iam.Role) {
	t.Helper()
	if err := s.iam.AddRole(r); err != nil {
		t.Fatal(err)
	}
}

// session returns a client with credentials of a role that has one policy.
func (s *service) session(t *testing.T, role, policy string) *awssts.Client {
	t.Helper()
	s.role(t, iam.Role{Name: role, Policies: map[string][]byte{"p": []byte(policy)}})
	c, _, err := s.iam.Issue(iam.Session{Role: role, Name: "caller", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return s.as(credentials.NewStaticCredentialsProvider(c.AccessKeyID, c.SecretAccessKey, c.Token))
}

// user returns a client of a user with one policy.
func (s *service) user(t *testing.T, policy string) *awssts.Client {
	t.Helper()
	key, err := s.iam.AddUser("alice", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	return s.as(credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""))
}

// assuming is a request for the role "target", edited.
func (s *service) assuming(edit func(*awssts.AssumeRoleInput)) *awssts.AssumeRoleInput {
	in := &awssts.AssumeRoleInput{RoleArn: aws.String(s.iam.RoleARN("target")), RoleSessionName: aws.String("session")}
	if edit != nil {
		edit(in)
	}
	return in
}

// with returns a client with assumed credentials.
func (s *service) with(c *types.Credentials) *awssts.Client {
	return s.as(credentials.NewStaticCredentialsProvider(*c.AccessKeyId, *c.SecretAccessKey, *c.SessionToken))
}

// Who may assume a role follows from its trust policy and the caller's own policies.
func TestTrustPolicyAndOwnPoliciesDecideWhoAssumesARole(t *testing.T) {
	const caller = "arn:aws:iam::" + account + ":role/caller"
	for name, test := range map[string]struct {
		trust  []byte
		policy string
		ok     bool
	}{
		"the account, with permission":        {trusting(`"sts:AssumeRole"`, principal(rootARN), ""), mayAll, true},
		"the account by number":               {trusting(`"sts:AssumeRole"`, principal(account), ""), mayAll, true},
		"the account, without permission":     {trusting(`"sts:AssumeRole"`, principal(rootARN), ""), mayNone, false},
		"the role, without permission":        {trusting(`"sts:AssumeRole"`, principal(caller), ""), mayNone, true},
		"the session, without permission":     {trusting(`"sts:AssumeRole"`, principal("arn:aws:sts::"+account+":assumed-role/caller/caller"), ""), mayNone, true},
		"the role, with a denial":             {trusting(`"sts:AssumeRole"`, principal(caller), ""), mustNot, false},
		"another role":                        {trusting(`"sts:AssumeRole"`, principal("arn:aws:iam::"+account+":role/other"), ""), mayAll, false},
		"another account":                     {trusting(`"sts:AssumeRole"`, principal("444455556666"), ""), mayAll, false},
		"any caller, with permission":         {trusting(`"sts:AssumeRole"`, `"*"`, ""), mayAll, true},
		"any caller, without permission":      {trusting(`"sts:AssumeRole"`, `{"AWS": "*"}`, ""), mayNone, false},
		"a service":                           {trusting(`"sts:AssumeRole"`, `{"Service": "ec2.amazonaws.com"}`, ""), mayAll, false},
		"another action":                      {trusting(`"sts:TagSession"`, principal(caller), ""), mayAll, false},
		"no trust policy":                     {nil, mayAll, false},
		"a condition that holds":              {trusting(`"sts:AssumeRole"`, principal(rootARN), `{"StringEquals": {"sts:RoleSessionName": "session"}}`), mayAll, true},
		"a condition that does not hold":      {trusting(`"sts:AssumeRole"`, principal(rootARN), `{"StringEquals": {"sts:ExternalId": "x1"}}`), mayAll, false},
		"the caller's role in a condition":    {trusting(`"sts:AssumeRole"`, principal(rootARN), `{"ArnEquals": {"aws:PrincipalArn": "`+caller+`"}}`), mayAll, true},
		"the tags of the role in a condition": {trusting(`"sts:AssumeRole"`, principal(rootARN), `{"StringEquals": {"aws:ResourceTag/team": "net"}}`), mayAll, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			c := s.session(t, "caller", test.policy)
			s.role(t, iam.Role{Name: "target", TrustPolicy: test.trust, Tags: map[string]string{"team": "net"}})
			out, err := c.AssumeRole(t.Context(), s.assuming(nil))
			if !test.ok {
				wantCode(t, err, "AccessDenied")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			who, err := s.with(out.Credentials).GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
			if want := "arn:aws:sts::" + account + ":assumed-role/target/session"; err != nil || *who.Arn != want || *out.AssumedRoleUser.Arn != want ||
				*who.UserId != *out.AssumedRoleUser.AssumedRoleId {
				t.Errorf("%+v, %v, want %s", who, err, want)
			}
		})
	}
}

func TestARefusedAssumeRoleNamesTheCallerAndTheRole(t *testing.T) {
	s := start(t)
	const text = "User: arn:aws:iam::111122223333:user/alice is not authorized to perform: sts:AssumeRole on resource: arn:aws:iam::111122223333:role/target"
	for policy, want := range map[string]string{
		mayAll:  text, // the role does not exist
		mustNot: text + " with an explicit deny in an identity-based policy",
	} {
		_, err := s.user(t, policy).AssumeRole(t.Context(), s.assuming(nil))
		var api smithy.APIError
		if !errors.As(err, &api) || api.ErrorCode() != "AccessDenied" || api.ErrorMessage() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// A role for a third party is assumed only with its external id.
func TestExternalIDIsCompared(t *testing.T) {
	s := start(t)
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(`"sts:AssumeRole"`, principal(rootARN), `{"StringEquals": {"sts:ExternalId": "tenant/7"}}`)})
	c := s.user(t, mayAll)
	for id, code := range map[string]string{"tenant/7": "", "tenant/8": "AccessDenied", "no blanks": "ValidationError", "x": "ValidationError"} {
		_, err := c.AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) { in.ExternalId = &id }))
		if code == "" && err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if code != "" {
			wantCode(t, err, code)
		}
	}
}

func TestInvalidAssumeRoleRequestsAreRefused(t *testing.T) {
	s := start(t)
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(taggable, principal(rootARN), "")})
	c := s.user(t, mayAll)
	tag := func(key string) types.Tag { return types.Tag{Key: aws.String(key), Value: aws.String("v")} }
	for name, test := range map[string]struct {
		edit func(*awssts.AssumeRoleInput)
		want string
	}{
		"a short ARN":            {func(in *awssts.AssumeRoleInput) { in.RoleArn = aws.String("target") }, "ValidationError"},
		"no ARN of a role":       {func(in *awssts.AssumeRoleInput) { in.RoleArn = aws.String("arn:aws:iam::111122223333:user/alice") }, "ValidationError: Request ARN is invalid"},
		"a session name":         {func(in *awssts.AssumeRoleInput) { in.RoleSessionName = aws.String("a b") }, "ValidationError"},
		"a source identity":      {func(in *awssts.AssumeRoleInput) { in.SourceIdentity = aws.String("a b") }, "ValidationError"},
		"a tag of AWS":           {func(in *awssts.AssumeRoleInput) { in.Tags = []types.Tag{tag("AWS:x")} }, "InvalidParameterValue"},
		"a tag twice":            {func(in *awssts.AssumeRoleInput) { in.Tags = []types.Tag{tag("Team"), tag("team")} }, "InvalidParameterValue"},
		"an empty tag key":       {func(in *awssts.AssumeRoleInput) { in.Tags = []types.Tag{tag("")} }, "ValidationError"},
		"a long tag key":         {func(in *awssts.AssumeRoleInput) { in.Tags = []types.Tag{tag(strings.Repeat("k", 129))} }, "ValidationError"},
		"an absent transitive":   {func(in *awssts.AssumeRoleInput) { in.TransitiveTagKeys = []string{"x"} }, "InvalidParameterValue"},
		"a refused parameter":    {func(in *awssts.AssumeRoleInput) { in.Policy = aws.String("{}") }, "UnsupportedOperation"},
		"less than 15 minutes":   {func(in *awssts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(899) }, "ValidationError"},
		"more than 12 hours":     {func(in *awssts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(43201) }, "ValidationError"},
		"more than the role may": {func(in *awssts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(3601) }, "ValidationError: The requested DurationSeconds exceeds the MaxSessionDuration set for this role."},
	} {
		_, err := c.AssumeRole(t.Context(), s.assuming(test.edit))
		var api smithy.APIError
		if !errors.As(err, &api) || !strings.HasPrefix(api.ErrorCode()+": "+api.ErrorMessage(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

// The credentials expire after the requested time, and not before.
func TestAssumedCredentialsExpire(t *testing.T) {
	var ahead atomic.Int64 // of the clients' clock, which may differ by 15 minutes
	ahead.Store(int64(-14 * time.Minute))
	s := startAt(t, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(`"sts:AssumeRole"`, principal(rootARN), "")})
	out, err := s.user(t, mayAll).AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(900) }))
	if err != nil {
		t.Fatal(err)
	}
	c := s.with(out.Credentials)
	if _, err := c.GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{}); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(2 * time.Minute))
	_, err = c.GetCallerIdentity(t.Context(), &awssts.GetCallerIdentityInput{})
	wantCode(t, err, "ExpiredToken")
}

// A session of a role assumes another role for an hour at most; the tags that it marked as
// transitive and its source identity pass on, and cannot be replaced.
func TestChainedSessionsInheritTagsAndSourceIdentity(t *testing.T) {
	s := start(t)
	s.role(t, iam.Role{
		Name: "first", TrustPolicy: trusting(taggable, principal(rootARN), ""), Policies: map[string][]byte{"p": []byte(mayAll)}, MaxSession: 12 * time.Hour,
		Tags: map[string]string{"Team": "role", "Kept": "role"},
	})
	s.role(t, iam.Role{Name: "target", MaxSession: 12 * time.Hour, TrustPolicy: trusting(taggable, principal(rootARN), `{"StringEquals": {
		"aws:PrincipalTag/team": "session", "aws:PrincipalTag/Kept": "role", "aws:SourceIdentity": "alice"}}`), Policies: map[string][]byte{"p": []byte(mayAll)}})
	s.role(t, iam.Role{Name: "last", TrustPolicy: trusting(taggable, principal(rootARN), `{"StringEquals": {
		"aws:PrincipalTag/team": "session", "aws:SourceIdentity": "alice"}, "Null": {"aws:PrincipalTag/once": "true"}}`)})
	first, err := s.user(t, mayAll).AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) {
		in.RoleArn, in.DurationSeconds, in.SourceIdentity = aws.String(s.iam.RoleARN("first")), aws.Int32(43200), aws.String("alice")
		in.Tags = []types.Tag{{Key: aws.String("team"), Value: aws.String("session")}, {Key: aws.String("once"), Value: aws.String("v")}}
		in.TransitiveTagKeys = []string{"TEAM"}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(*first.Credentials.Expiration); left < 11*time.Hour {
		t.Errorf("the session lasts %s, want twelve hours", left)
	}
	c := s.with(first.Credentials)
	_, err = c.AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) { in.DurationSeconds = aws.Int32(3601) }))
	wantCode(t, err, "ValidationError")
	_, err = c.AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) {
		in.Tags = []types.Tag{{Key: aws.String("Team"), Value: aws.String("other")}}
	}))
	wantCode(t, err, "InvalidParameterValue")
	_, err = c.AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) { in.SourceIdentity = aws.String("mallory") }))
	wantCode(t, err, "AccessDenied")
	second, err := c.AssumeRole(t.Context(), s.assuming(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.with(second.Credentials).AssumeRole(t.Context(), s.assuming(func(in *awssts.AssumeRoleInput) { in.RoleArn = aws.String(s.iam.RoleARN("last")) })); err != nil {
		t.Error(err)
	}
}

// Session tags and a source identity each need a permission of their own.
func TestSessionTagsNeedPermission(t *testing.T) {
	s := start(t)
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(`"sts:AssumeRole"`, principal(rootARN), "")})
	c := s.user(t, mayAll)
	for action, edit := range map[string]func(*awssts.AssumeRoleInput){
		"sts:TagSession": func(in *awssts.AssumeRoleInput) {
			in.Tags = []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}
		},
		"sts:SetSourceIdentity": func(in *awssts.AssumeRoleInput) { in.SourceIdentity = aws.String("alice") },
	} {
		_, err := c.AssumeRole(t.Context(), s.assuming(edit))
		wantCode(t, err, "AccessDenied")
		if err != nil && !strings.Contains(err.Error(), "perform: "+action+" ") {
			t.Errorf("%v does not name %s", err, action)
		}
	}
}

// The SDK's own provider assumes a role, as AWS's VPC resource controller does.
func TestTheSDKsProviderAssumesARole(t *testing.T) {
	s := start(t)
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(taggable, principal(rootARN), "")})
	provider := stscreds.NewAssumeRoleProvider(s.user(t, mayAll), s.iam.RoleARN("target"), func(o *stscreds.AssumeRoleOptions) {
		o.ExternalID, o.Tags = aws.String("cluster-1"), []types.Tag{{Key: aws.String("cluster"), Value: aws.String("prod")}}
	})
	got, err := provider.Retrieve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(got.Expires); left < 14*time.Minute || left > 15*time.Minute { // the provider asks for 15 minutes
		t.Errorf("credentials expire in %s, want 15 minutes", left)
	}
}

// Debian's awscli, called by its path: another aws on the PATH may have another version.
func TestDebiansAWSCLIAssumesARole(t *testing.T) {
	const awscli = "/usr/bin/aws"
	if testing.Short() {
		t.Skip("awscli takes seconds to start")
	}
	if err := exec.Command(awscli, "--version").Run(); err != nil {
		t.Skipf("%s does not run: %v (apt-get install awscli)", awscli, err)
	}
	s := start(t)
	s.role(t, iam.Role{Name: "target", TrustPolicy: trusting(taggable, principal(rootARN), "")})
	key, err := s.iam.AddUser("alice", []byte(mayAll))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), awscli, "--endpoint-url", s.url, "--output", "json", "sts", "assume-role",
		"--role-arn", s.iam.RoleARN("target"), "--role-session-name", "cli", "--tags", "Key=a,Value=b", "--transitive-tag-keys", "a", "--source-identity", "alice")
	cmd.Env = []string{
		"HOME=" + t.TempDir(), "PATH=/usr/bin", "AWS_REGION=us-west-2", "AWS_PAGER=",
		"AWS_ACCESS_KEY_ID=" + key.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + key.SecretAccessKey,
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var got awssts.AssumeRoleOutput
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if *got.AssumedRoleUser.Arn != "arn:aws:sts::111122223333:assumed-role/target/cli" || *got.SourceIdentity != "alice" || got.Credentials.SessionToken == nil {
		t.Errorf("%s", out)
	}
}
