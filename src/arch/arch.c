#include "arch/arch.h"

#define ARCH(descriptor) extern const struct arch descriptor;
#include "arch/arch_list.h"
#undef ARCH

static const struct model_family *const all_families[] = {
#define ARCH(descriptor) &descriptor.family,
#include "arch/arch_list.h"
#undef ARCH
    NULL,
};

const struct model_family *const *arch_families(void)
{
    return all_families;
}

const struct arch *arch_of(const struct model *model)
{
    return (const struct arch *)model->family;
}
