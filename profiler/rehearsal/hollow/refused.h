/* Says that a function was called that these libraries do not have; whoever calls this says it once. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void tell_refused(const char *name) {
    const char *folder = getenv("HOLLOW_REFUSED");
    char path[PATH_MAX];
    if (getenv("HOLLOW_LOG")) fprintf(stderr, "hollow: not supported: %s\n", name);
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%d.refused", folder, (int)getpid());
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return;
    dprintf(file, "%s\n", name);
    close(file);
}
