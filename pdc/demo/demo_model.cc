#include "pdc/demo/demo_model.h"

// Millions of bytes as a C++ array take a compiler minutes; the assembler takes the file as it is.
asm(".section .rodata\n"
    ".balign 64\n"
    ".hidden ems_demo_model_begin\n"
    ".hidden ems_demo_model_end\n"
    ".globl ems_demo_model_begin\n"
    ".globl ems_demo_model_end\n"
    "ems_demo_model_begin:\n"
    ".incbin \"" EMS_DEMO_MODEL_FILE
    "\"\n"
    "ems_demo_model_end:\n"
    ".previous\n");
extern "C" const std::byte ems_demo_model_begin[];
extern "C" const std::byte ems_demo_model_end[];

namespace ems::pdc {

ConstBytes DemoModelFile() { return {ems_demo_model_begin, ems_demo_model_end}; }

}  // namespace ems::pdc
