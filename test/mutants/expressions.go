package mutants

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

func (f *finder) isBoolean(e ast.Expr) bool {
	t := f.info.Types[e].Type
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

func (f *finder) isConstant(e ast.Expr) bool { return f.info.Types[e].Value != nil }

// condition adds what a branch does if its condition always or never holds. The switch is
// asked only where it changes the value.
func (f *finder) condition(e ast.Expr) {
	if f.isConstant(e) {
		return
	}
	f.always(e)
	f.never(e)
}

func (f *finder) always(e ast.Expr) { f.add(True, e, wrap("((", ") || mutantOn(%d))")) }
func (f *finder) never(e ast.Expr)  { f.add(False, e, wrap("((", ") && !mutantOn(%d))")) }

// negated adds the opposite of a boolean value that is returned or assigned.
func (f *finder) negated(e ast.Expr) {
	if f.isBoolean(e) {
		f.add(Negate, e, wrap("(mutantOn(%d) != (", "))"))
	}
}

// binary adds an operator exchanged, or an operand of a condition removed.
func (f *finder) binary(e *ast.BinaryExpr) {
	if f.isConstant(e) {
		return
	}
	switch e.Op {
	case token.LAND:
		f.operand(e.X, token.LAND, f.always)
		f.operand(e.Y, token.LAND, f.always)
	case token.LOR:
		f.operand(e.X, token.LOR, f.never)
		f.operand(e.Y, token.LOR, f.never)
	default:
		if function := exchanged(e.Op); function != "" {
			kind := Operator
			if strings.HasPrefix(function, "mutantLess") || strings.HasPrefix(function, "mutantGreater") {
				kind = Bound
			}
			at := f.offset(e.OpPos)
			f.add(kind, e, wrap(function+"(%d, ", ")"), edit{start: at, end: at + len(e.Op.String()), before: ",", replaced: true})
		}
	}
}

// operand removes an operand of && or ||. In a chain of the same operator, the operands of
// the inner expression are visited with it.
func (f *finder) operand(e ast.Expr, of token.Token, remove func(ast.Expr)) {
	if inner, ok := e.(*ast.BinaryExpr); ok && inner.Op == of || f.isConstant(e) {
		return
	}
	remove(e)
}

// exchanged is the function of the switch file that stands for an operator.
func exchanged(op token.Token) string {
	switch op { //nolint:exhaustive // other operators are not changed
	case token.LSS:
		return "mutantLess"
	case token.LEQ:
		return "mutantLessOrEqual"
	case token.GTR:
		return "mutantGreater"
	case token.GEQ:
		return "mutantGreaterOrEqual"
	case token.ADD:
		return "mutantAdd"
	case token.SUB:
		return "mutantSub"
	case token.MUL:
		return "mutantMul"
	case token.QUO:
		return "mutantQuo"
	case token.AND:
		return "mutantAnd"
	case token.OR:
		return "mutantOr"
	}
	return ""
}

// bound adds a bound of a slice that is one more.
func (f *finder) bound(e ast.Expr) {
	if e != nil {
		f.add(Bound, e, wrap("mutantMore(%d, ", ")"))
	}
}

// fields adds the fields of a struct literal that are not set.
func (f *finder) fields(lit *ast.CompositeLit) {
	t := f.info.Types[lit].Type
	if t == nil {
		return
	}
	if named, ok := types.Unalias(t).(*types.Named); ok && strings.HasPrefix(packageOf(named.Obj()), "github.com/prometheus/") {
		return // names and descriptions of metrics
	}
	if _, ok := t.Underlying().(*types.Struct); !ok {
		return
	}
	for _, element := range lit.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok || f.info.Types[field.Value].IsNil() {
			continue
		}
		function := "mutantZero"
		if f.isConstant(field.Value) {
			text, known := f.typeText(f.info.Types[field.Value].Type)
			if !known {
				continue
			}
			function += "[" + text + "]"
		}
		f.add(Zero, field.Value, wrap(function+"(%d, ", ")"))
	}
}
