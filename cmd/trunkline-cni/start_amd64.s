#include "go_asm.h"
#include "textflag.h"

// start is where the program begins when it is linked with -E main.start: see early.go.
// The kernel has left argc, argv and the environment on the stack. Compiled Go wants a g
// in thread-local storage, eight bytes below FS; ours has a stack guard of zero, so no
// function asks the runtime for a larger stack. The runtime sets both anew.
TEXT ·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ	SP, ·process+earlyStart_stack(SB)
	LEAQ	·process+earlyStart_g(SB), AX
	MOVQ	AX, ·process+earlyStart_tls(SB)
	LEAQ	·process+earlyStart_tls+8(SB), SI
	MOVL	$0x1002, DI // ARCH_SET_FS
	MOVL	$158, AX    // arch_prctl
	SYSCALL
	ANDQ	$~15, SP
	CALL	·early(SB)
	MOVQ	·process+earlyStart_stack(SB), SP
	JMP	_rt0_amd64_linux(SB)
