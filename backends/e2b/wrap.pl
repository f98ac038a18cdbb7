# args: KEY COUNT NAME=VALUE... COMMAND... Runs the command as the sandbox's user, in a process group of its own, with exactly so many
# variables. Says on standard error, between NULs, "KEY s PID" when it is there and "KEY x STATUS" (as of wait) when it has ended. What the
# command leaves behind becomes its own children (prctl 36), for whom it stays. It is root itself where it may be, so that the command
# cannot end it. A command that was killed before it is there (kill.pl) does not begin.
my ($k, $n) = splice @ARGV, 0, 2;
my @env = splice @ARGV, 0, $n;
my $elf = ''; # of perl itself: Config, which knows the machine too, takes as long to load as all the rest here
if (open my $exe, '<', '/proc/self/exe') { read $exe, $elf, 20 }
syscall(unpack('x18 v', $elf . "\0" x 20) == 62 ? 157 : 167, 36, 1, 0, 0, 0); # x86-64, or one with the common numbers
my ($uid, $gid) = (getpwnam 'user')[2, 3];
my $p = fork;
if (!defined $p) { syswrite STDERR, "cannot start a process: $!\n\0$k x 32256\0"; exit 126 }
my $killed = "/run/sandgate/$k";
if (!$p) {
    no warnings;
    kill 'KILL', $$ if -e $killed;
    if ($> == 0 && $uid) {
        my @groups = ($gid);
        while (my @g = getgrent) { push @groups, $g[2] if grep { $_ eq 'user' } split ' ', $g[3] }
        ($(, $)) = ($gid, join ' ', $gid, @groups);
        ($<, $>) = ($uid, $uid);
        if ($> == 0 || $< == 0) { syswrite STDERR, "cannot become the sandbox's user\n"; exit 126 }
    }
    setpgrp 0, 0;
    %ENV = map { split /=/, $_, 2 } @env;
    exec { $ARGV[0] } @ARGV;
    my $e = $! + 0;
    syswrite STDERR, "$ARGV[0]: $!\n";
    exit($e == 2 ? 127 : 126);
}
syswrite STDERR, "\0$k s $p\0";
close STDIN; close STDOUT;
while ((my $w = waitpid(-1, 0)) > 0) {
    if ($w == $p) { syswrite STDERR, "\0$k x $?\0"; close STDERR }
}
unlink $killed;
