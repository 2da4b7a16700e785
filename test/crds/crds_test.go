package crds

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiext "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const deploy = "../../deploy"

// definition is what the API server makes of a CustomResourceDefinition.
type definition struct {
	name      string
	internal  apiext.CustomResourceDefinition
	schema    *structural.Structural
	validator validation.SchemaValidator
	rules     *cel.Validator
}

func read(t *testing.T, path string) definition {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	apiextv1.SetDefaults_CustomResourceDefinition(&crd)
	apiextv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	crd.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
	d := definition{name: crd.Name}
	if err := apiextv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &d.internal, nil); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	// The conversion moves the schema and sub-resources of a single version to the spec.
	schema := d.internal.Spec.Validation
	if schema == nil {
		schema = d.internal.Spec.Versions[0].Schema
	}
	if d.schema, err = structural.NewStructural(schema.OpenAPIV3Schema); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if d.validator, _, err = validation.NewSchemaValidator(schema.OpenAPIV3Schema); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	d.rules = cel.NewValidator(d.schema, true, celconfig.PerCallLimit)
	return d
}

// object reads an object; ofServer makes it what a decoder of the API server makes of it.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	if text == "" {
		return nil
	}
	var obj map[string]any
	if err := yaml.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return ofServer(obj).(map[string]any)
}

// ofServer returns v with whole numbers as int64.
func ofServer(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = ofServer(v[key])
		}
	case []any:
		for i := range v {
			v[i] = ofServer(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// pruned removes what the schema does not name, and returns the paths.
func (d definition) pruned(obj map[string]any) []string {
	return pruning.PruneWithOptions(obj, d.schema, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
}

// refusals are the API server's errors for an object, which is new if before is nil.
func (d definition) refusals(t *testing.T, obj, before map[string]any) error {
	t.Helper()
	errs := validation.ValidateCustomResource(nil, obj, d.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.schema, obj)...)
	if len(errs) == 0 && d.rules != nil {
		var old any
		if before != nil {
			old = before
		}
		found, _ := d.rules.Validate(t.Context(), nil, d.schema, obj, old, celconfig.RuntimeCELCostBudget)
		errs = append(errs, found...)
	}
	return errs.ToAggregate()
}

func TestTheAPIServerTakesEveryDefinition(t *testing.T) {
	var found []string
	err := filepath.WalkDir(deploy, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "\nkind: CustomResourceDefinition\n") {
			return err
		}
		d := read(t, path)
		found = append(found, d.name)
		if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &d.internal); len(errs) != 0 {
			t.Errorf("%s: %v", path, errs.ToAggregate())
		}
		return nil
	})
	if err != nil || len(found) != 5 {
		t.Fatalf("definitions %q, %v; want 5", found, err)
	}
}

// The same code must refuse a definition with a rule that does not compile, and one with a rule
// that may cost too much.
func TestADefinitionWithABadRuleIsRefused(t *testing.T) {
	for rule, want := range map[string]string{
		"self.spec.nothing == 1": "undefined field 'nothing'",
		"self.spec.securityGroups.groupIds.all(a, self.spec.securityGroups.groupIds.all(b, a.contains(b)))": "cost",
	} {
		d := read(t, policies)
		schema := d.internal.Spec.Validation.OpenAPIV3Schema
		schema.XValidations = append(schema.XValidations, apiext.ValidationRule{Rule: rule})
		err := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &d.internal).ToAggregate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", rule, err, want)
		}
	}
}

// verdict is what the API server does with an object.
type verdict struct {
	name, object, before string
	refused              string // in the error; "" is accepted
}

func judge(t *testing.T, path string, list []verdict) {
	t.Helper()
	d := read(t, path)
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			obj := object(t, tt.object)
			if unknown := d.pruned(obj); len(unknown) != 0 {
				t.Fatalf("the definition does not have %q", unknown)
			}
			err := d.refusals(t, obj, object(t, tt.before))
			if tt.refused == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil {
				err = errors.New("accepted")
			}
			if !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%v, want %q", err, tt.refused)
			}
		})
	}
}
