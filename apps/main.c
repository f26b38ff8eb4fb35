#include <stdio.h>

int main(void)
{
    puts("flashmoe");
    return 0;
}
